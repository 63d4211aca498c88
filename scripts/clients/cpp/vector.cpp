// Tests the client with a step whose losses are known, see `onnxgrad train-step --vectors FOLDER`.
//
//     c++ -std=c++17 -I DIR_OF_onnxruntime_c_api.h vector.cpp -L DIR -lonnxruntime -o vector
//     ./vector FOLDER/full STATE
//
// Half of the steps are taken after a checkpoint was written to STATE and read. It prints the losses
// and the largest difference; the exit code is 0 if that is below 1e-5.
#include <algorithm>
#include <cstdio>

#include "step.hpp"

using namespace onnxgrad;

static double run(const std::filesystem::path& folder, const std::filesystem::path& state) {
  const Arrays vector = Safetensors::read(folder / "vector.safetensors").arrays;
  const Array& losses = vector.at("losses");
  const double rate = vector.at("rate").number(0);
  const size_t count = static_cast<size_t>(losses.shape[0]);
  auto batch = [&](size_t number) {
    Arrays found;
    for (const auto& [name, array] : vector)
      if (name.rfind("batch.", 0) == 0) found.emplace(name.substr(6), array.row(number));
    return found;
  };
  auto training = std::make_unique<Training>(folder);
  training->seed = static_cast<int64_t>(vector.at("seed").number(0));
  const size_t accumulate = static_cast<size_t>(training->manifest.whole("accumulate", 1));
  double worst = 0;
  for (size_t k = 0; k < count; k++) {
    if (k == count / 2) {
      training->save(state);
      training = std::make_unique<Training>(folder);
      training->restore(state);
    }
    std::vector<Arrays> parts;
    for (size_t i = 0; i < accumulate; i++) parts.push_back(batch(k * accumulate + i));
    const double loss = training->step(parts, rate);
    std::printf("%.9g\n", loss);
    worst = std::max(worst, std::abs(loss - losses.number(k)));
  }
  training->save(state);
  if (const auto held_out = vector.find("held_out"); held_out != vector.end()) {
    std::vector<Arrays> all;
    for (size_t i = 0; i < count * accumulate; i++) all.push_back(batch(i));
    worst = std::max(worst, std::abs(training->held_out(all) - held_out->second.number(0)));
  }
  const Arrays outputs = training->predict(batch(0));
  for (const auto& [name, wanted] : vector) {
    if (name.rfind("output.", 0) != 0) continue;
    const Array& found = outputs.at(name.substr(7));
    for (size_t i = 0; i < static_cast<size_t>(Array::count(wanted.shape)); i++)
      worst = std::max(worst, std::abs(found.number(i) - wanted.number(i)));
  }
  return worst;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: vector FOLDER STATE\n");
    return 2;
  }
  try {
    const double worst = run(argv[1], argv[2]);
    std::printf("largest difference %g\n", worst);
    return worst < 1e-5 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vector: %s\n", error.what());
    return 2;
  }
}
