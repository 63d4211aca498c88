// Runs a training step that onnxgrad wrote, by the C interface of onnxruntime: `onnxgrad help
// step-format` describes the folder. The numbers are little-endian, as in the files.
//
// Of onnxruntime_c_api.h it uses OrtGetApiBase()->GetApi(1) and these functions, which every version
// has: CreateEnv, CreateSessionOptions, SetIntraOpNumThreads, CreateSession,
// GetAllocatorWithDefaultOptions, AllocatorFree, SessionGetInputCount, SessionGetInputName,
// SessionGetOutputCount, SessionGetOutputName, CreateCpuMemoryInfo,
// CreateTensorWithDataAsOrtValue, Run, GetTensorTypeAndShape, GetTensorElementType,
// GetDimensionsCount, GetDimensions, GetTensorMutableData, GetErrorMessage, and the Release of each
// object.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>

#include "safetensors.hpp"

namespace onnxgrad {

inline const OrtApi& ort() {
  static const OrtApi* api = OrtGetApiBase()->GetApi(1);
  return *api;
}

inline void check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = ort().GetErrorMessage(status);
  ort().ReleaseStatus(status);
  throw std::runtime_error(message);
}

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// What a function of the interface makes, owned.
template <typename T, typename Make>
Owned<T> made(void(ORT_API_CALL* release)(T*), Make make) {
  T* object = nullptr;
  check(make(&object));
  return {object, release};
}

class Graph {
 public:
  Graph(OrtEnv* env, const std::filesystem::path& path, int threads)
      : session_(nullptr, ort().ReleaseSession) {
    auto options = made<OrtSessionOptions>(ort().ReleaseSessionOptions,
                                           [&](auto o) { return ort().CreateSessionOptions(o); });
    check(ort().SetIntraOpNumThreads(options.get(), threads));
    session_ = made<OrtSession>(ort().ReleaseSession, [&](auto s) {
      return ort().CreateSession(env, path.c_str(), options.get(), s);
    });
    inputs_ = names(ort().SessionGetInputCount, ort().SessionGetInputName);
    outputs_ = names(ort().SessionGetOutputCount, ort().SessionGetOutputName);
  }

  // The outputs by name, of those of the values that the graph takes; later ones hide earlier ones.
  Arrays run(const std::vector<const Arrays*>& values) const {
    auto memory = made<OrtMemoryInfo>(ort().ReleaseMemoryInfo, [](auto m) {
      return ort().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, m);
    });
    std::vector<Owned<OrtValue>> held;
    std::vector<const OrtValue*> feeds;
    std::vector<const char*> in, out;
    for (const std::string& name : inputs_) {
      const Array& array = find(values, name);
      held.push_back(made<OrtValue>(ort().ReleaseValue, [&](auto v) {
        return ort().CreateTensorWithDataAsOrtValue(
            memory.get(), const_cast<char*>(array.bytes.data()), array.bytes.size(),
            array.shape.data(), array.shape.size(),
            static_cast<ONNXTensorElementDataType>(array.dtype->number), v);
      }));
      feeds.push_back(held.back().get());
      in.push_back(name.c_str());
    }
    for (const std::string& name : outputs_) out.push_back(name.c_str());
    std::vector<OrtValue*> results(out.size(), nullptr);
    OrtStatus* status = ort().Run(session_.get(), nullptr, in.data(), feeds.data(), feeds.size(),
                                  out.data(), out.size(), results.data());
    for (OrtValue* result : results) held.emplace_back(result, ort().ReleaseValue);
    check(status);
    Arrays found;
    for (size_t i = 0; i < results.size(); i++) found.emplace(outputs_[i], copied(results[i]));
    return found;
  }

 private:
  static const Array& find(const std::vector<const Arrays*>& values, const std::string& name) {
    for (auto each = values.rbegin(); each != values.rend(); ++each)
      if (auto found = (*each)->find(name); found != (*each)->end()) return found->second;
    throw std::runtime_error("the batch lacks '" + name + "'");
  }

  template <typename Count, typename Name>
  std::vector<std::string> names(Count count, Name name) const {
    OrtAllocator* allocator = nullptr;
    check(ort().GetAllocatorWithDefaultOptions(&allocator));
    size_t number = 0;
    check(count(session_.get(), &number));
    std::vector<std::string> found;
    for (size_t i = 0; i < number; i++) {
      char* text = nullptr;
      check(name(session_.get(), i, allocator, &text));
      found.emplace_back(text);
      check(ort().AllocatorFree(allocator, text));
    }
    return found;
  }

  static Array copied(OrtValue* value) {
    auto info = made<OrtTensorTypeAndShapeInfo>(
        ort().ReleaseTensorTypeAndShapeInfo,
        [&](auto i) { return ort().GetTensorTypeAndShape(value, i); });
    ONNXTensorElementDataType type;
    size_t rank = 0;
    check(ort().GetTensorElementType(info.get(), &type));
    check(ort().GetDimensionsCount(info.get(), &rank));
    std::vector<int64_t> shape(rank);
    check(ort().GetDimensions(info.get(), shape.data(), rank));
    const int number = static_cast<int>(type);
    Array array = Array::zeros(
        dtype_where(std::to_string(number), [&](const Dtype& d) { return d.number == number; }),
        std::move(shape));
    void* data = nullptr;
    check(ort().GetTensorMutableData(value, &data));
    if (!array.bytes.empty()) std::memcpy(array.bytes.data(), data, array.bytes.size());
    return array;
  }

  Owned<OrtSession> session_;
  std::vector<std::string> inputs_, outputs_;
};

// The fields are public, the state between two steps: change them between steps only.
class Training {
 public:
  Json manifest;
  Arrays values;      // parameters, states and what else is carried, by the names of inputs
  int64_t steps = 0;  // taken
  int64_t seed = 0;   // of the run: Dropout draws by it

  // Opens a step at its first values. Throws std::runtime_error, as all functions here.
  explicit Training(std::filesystem::path folder, int threads = 1)
      : folder_(std::move(folder)),
        threads_(threads),
        env_(made<OrtEnv>(ort().ReleaseEnv, [](auto env) {
          return ort().CreateEnv(ORT_LOGGING_LEVEL_WARNING, "onnxgrad", env);
        })) {
    manifest = Json::parse(read_file(folder_ / "manifest.json"));
    if (manifest.text_or("format", "") != "onnxgrad training step")
      throw std::runtime_error("manifest.json is of no training step");
    if (manifest.whole("version", 0) != 3)
      throw std::runtime_error("manifest.json is of another version than 3");
    for (const auto& [role, inputs] : manifest.at("inputs").members)
      for (const Json& input : inputs.items)
        if (input.find("next")) carried_.push_back(input);
    restore(folder_ / manifest.at("state").string);
  }

  // One step: the loss before it, the mean over its micro-batches, by their labels if the manifest
  // says so. If it is not finite, it throws, and nothing changes.
  double step(const std::vector<Arrays>& batches, double rate) {
    const int64_t accumulate = manifest.whole("accumulate", 1), number = steps + 1;
    if (static_cast<int64_t>(batches.size()) != accumulate)
      throw std::runtime_error("a step takes " + std::to_string(accumulate) + " batches");
    Arrays now = values, given, outputs;
    const bool by_labels = manifest.text_or("accumulate_by", "") == "labels";
    double sum = 0, total = 0;
    for (int64_t i = 0; i < accumulate; i++) {
      check_batch(batches[i]);
      given = numbers(number, rate, (seed << 32) + steps * accumulate + i + 1);
      outputs = graph("train").run({&now, &given, &batches[i]});
      const double weight =
          by_labels ? outputs.at(manifest.at("divisor").string).number(0) : 1;
      sum += weight * outputs.at(manifest.at("loss").string).number(0);
      total += weight;
      carry(now, outputs);
    }
    if (manifest.find("update")) {
      outputs = graph("update").run({&now, &given});
      carry(now, outputs);
    }
    check_finite(sum, outputs);
    const double mean = sum / (total != 0 ? total : 1);
    values = std::move(now);
    steps = number;
    return mean;
  }

  // The model's outputs with the weights as they are now; labels are not read.
  Arrays predict(const Arrays& batch) { return graph("predict").run({&values, &batch}); }

  // The model's outputs, the loss and its sums.
  Arrays evaluate(const Arrays& batch) {
    check_batch(batch);
    return graph("eval").run({&values, &batch});
  }

  // The loss over all batches together, whatever their sizes and however many of their labels are
  // ignored; NaN if no label counts.
  double held_out(const std::vector<Arrays>& batches) {
    const std::vector<Json>& sums = manifest.at("sums").items;
    std::vector<std::pair<double, double>> found(sums.size());
    for (const Arrays& batch : batches) {
      const Arrays outputs = evaluate(batch);
      for (size_t i = 0; i < sums.size(); i++) {
        found[i].first += outputs.at(sums[i].at("numerator").string).number(0);
        if (const Json* below = sums[i].find("denominator"))
          found[i].second += outputs.at(below->string).number(0);
      }
    }
    double loss = 0;
    for (size_t i = 0; i < sums.size(); i++)
      loss += sums[i].find("denominator") ? found[i].first / found[i].second : found[i].first;
    return loss;
  }

  // The weights as they are now, by the inputs that keep those of the beginning of a round of
  // federated training (FedProx): a part of each batch of the round.
  Arrays anchors() const {
    Arrays found;
    for (const Json& input : of_role("batch"))
      if (const Json* of = input.find("of"))
        found.emplace(input.at("name").string, values.at(of->string));
    return found;
  }

  // Writes a checkpoint, which `restore` reads, and Python's Trainer too.
  void save(const std::filesystem::path& path) const {
    const std::string progress =
        "{\"steps\":" + std::to_string(steps) + ",\"seed\":" + std::to_string(seed) + "}";
    const std::string words = "{\"model\":" + Json::quoted(manifest.text_or("model", "")) +
                              ",\"progress\":" + Json::quoted(progress) + "}";
    Safetensors{values, {{"onnxgrad", words}}}.write(path);
  }

  // Continues from a checkpoint, or begins with the step's own state, which has no zeros.
  void restore(const std::filesystem::path& path) {
    const Safetensors read = Safetensors::read(path);
    auto entry = read.metadata.find("onnxgrad");
    const Json words = Json::parse(entry == read.metadata.end() ? "{}" : entry->second);
    if (words.text_or("model", "") != manifest.text_or("model", ""))
      throw std::runtime_error(path.string() + " is of another model");
    const Json progress = Json::parse(words.text_or("progress", "{}"));
    if (progress.whole("micro", 0))
      throw std::runtime_error(path.string() + " stands between the batches of one step");
    Arrays found;
    for (const Json& input : carried_) {
      const std::string& name = input.at("name").string;
      Array wanted = Array::zeros(dtype_named(input.at("dtype").string), Array::shape_of(input));
      auto stored = read.arrays.find(name);
      if (stored != read.arrays.end()) {
        if (stored->second.dtype != wanted.dtype || stored->second.shape != wanted.shape)
          throw std::runtime_error(path.string() + " has another type for '" + name + "'");
        wanted = stored->second;
      } else if (!input.find("zeros") || words.find("progress")) {
        throw std::runtime_error(path.string() + " lacks '" + name + "'");
      }
      found.emplace(name, std::move(wanted));
    }
    values = std::move(found);
    steps = progress.whole("steps", 0);
    seed = progress.whole("seed", 0);
  }

 private:
  const std::vector<Json>& of_role(const std::string& role) const {
    static const std::vector<Json> none;
    const Json* found = manifest.at("inputs").find(role);
    return found ? found->items : none;
  }

  Arrays numbers(int64_t step, double rate, int64_t drawn) const {
    Arrays made;
    for (const Json& input : of_role("step"))
      made.emplace(input.at("name").string, Array::scalar("int64", step));
    for (const Json& input : of_role("seed"))
      made.emplace(input.at("name").string, Array::scalar("int64", drawn));
    for (const Json& input : of_role("learning_rate")) {
      const bool wide = input.at("dtype").string == "float64";
      made.emplace(input.at("name").string,
                   wide ? Array::scalar("float64", rate)
                        : Array::scalar("float32", static_cast<float>(rate)));
    }
    return made;
  }

  void carry(Arrays& now, Arrays& outputs) const {
    for (const Json& input : carried_) {
      auto next = outputs.find(input.at("next").string);
      if (next != outputs.end()) now[input.at("name").string] = next->second;
    }
  }

  void check_finite(double loss, const Arrays& outputs) const {
    const Json* norm = manifest.find("loss_scaling") ? nullptr : manifest.find("gradient_norm");
    if (std::isfinite(loss) && (!norm || std::isfinite(outputs.at(norm->string).number(0)))) return;
    throw std::runtime_error("step " + std::to_string(steps + 1) +
                             ": the loss or the gradients are not finite");
  }

  void check_batch(const Arrays& batch) const {
    for (const Json& input : of_role("batch")) {
      const std::string& name = input.at("name").string;
      auto found = batch.find(name);
      if (found == batch.end()) throw std::runtime_error("the batch lacks '" + name + "'");
      const size_t count = static_cast<size_t>(Array::count(found->second.shape));
      if (count == 0) throw std::runtime_error("'" + name + "' of the batch is empty");
      const double classes = static_cast<double>(input.whole("classes", 0));
      const Json* ignored = input.find("ignored");
      for (size_t i = 0; classes > 0 && i < count; i++) {
        const double label = found->second.number(i);
        if ((label >= 0 && label < classes) || (ignored && label == ignored->value)) continue;
        throw std::runtime_error("'" + name + "' has a label that is none of the classes");
      }
    }
  }

  Graph& graph(const std::string& key) {
    auto& found = graphs_[key];
    if (!found)
      found = std::make_unique<Graph>(env_.get(), folder_ / manifest.at(key).string, threads_);
    return *found;
  }

  std::filesystem::path folder_;
  int threads_;
  Owned<OrtEnv> env_;
  std::vector<Json> carried_;
  std::map<std::string, std::unique_ptr<Graph>> graphs_;
};

}  // namespace onnxgrad
