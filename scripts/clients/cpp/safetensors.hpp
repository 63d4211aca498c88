// Arrays by name in one file, see https://github.com/huggingface/safetensors.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "json.hpp"

namespace onnxgrad {

// How the format, a manifest and onnxruntime (ONNXTensorElementDataType) call a type.
struct Dtype {
  const char *code, *name;
  int number;
  size_t size;
};

inline const Dtype kDtypes[] = {
    {"F32", "float32", 1, 4},  {"U8", "uint8", 2, 1},      {"I8", "int8", 3, 1},
    {"U16", "uint16", 4, 2},   {"I16", "int16", 5, 2},     {"I32", "int32", 6, 4},
    {"I64", "int64", 7, 8},    {"BOOL", "bool", 9, 1},     {"F16", "float16", 10, 2},
    {"F64", "float64", 11, 8}, {"U32", "uint32", 12, 4},   {"U64", "uint64", 13, 8},
    {"BF16", "bfloat16", 16, 2},
};

// The type that the predicate accepts. Throws, naming `what`, where there is none.
template <typename Test>
const Dtype& dtype_where(const std::string& what, Test test) {
  for (const Dtype& dtype : kDtypes)
    if (test(dtype)) return dtype;
  throw std::runtime_error("the type " + what + " is not known here");
}

inline const Dtype& dtype_named(const std::string& name) {
  return dtype_where(name, [&](const Dtype& d) { return name == d.name; });
}

constexpr int64_t kMost = int64_t{1} << 50;  // elements

struct Array {
  const Dtype* dtype = &kDtypes[0];
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  // How many elements a shape has. Throws where no file could hold them.
  static int64_t count(const std::vector<int64_t>& shape) {
    int64_t found = 1;
    for (int64_t size : shape) {
      if (size < 0 || (size > 0 && found > kMost / size)) throw std::runtime_error("a bad shape");
      found *= size;
    }
    return found;
  }

  // The shape that an entry of JSON has.
  static std::vector<int64_t> shape_of(const Json& entry) {
    std::vector<int64_t> shape;
    for (const Json& size : entry.at("shape").items) shape.push_back(size.natural());
    return shape;
  }

  static Array zeros(const Dtype& dtype, std::vector<int64_t> shape) {
    const size_t bytes = static_cast<size_t>(count(shape)) * dtype.size;
    return {&dtype, std::move(shape), std::vector<char>(bytes)};
  }

  template <typename T>
  static Array scalar(const char* name, T value) {
    Array made = zeros(dtype_named(name), {});
    std::memcpy(made.bytes.data(), &value, sizeof value);
    return made;
  }

  // The element at that place as a double. Throws for types that no number here has.
  double number(size_t index) const {
    switch (dtype->number) {
      case 1: return as<float>(index);
      case 6: return as<int32_t>(index);
      case 7: return static_cast<double>(as<int64_t>(index));
      case 11: return as<double>(index);
    }
    throw std::runtime_error(std::string("a number of type ") + dtype->name + " is not read here");
  }

  // The part at one place of the first axis.
  Array row(size_t index) const {
    if (shape.empty() || index >= static_cast<size_t>(shape[0]))
      throw std::runtime_error("an array has no row " + std::to_string(index));
    Array made = zeros(*dtype, {shape.begin() + 1, shape.end()});
    std::memcpy(made.bytes.data(), bytes.data() + index * made.bytes.size(), made.bytes.size());
    return made;
  }

 private:
  template <typename T>
  T as(size_t index) const {
    if ((index + 1) * sizeof(T) > bytes.size())
      throw std::runtime_error("an array has no element " + std::to_string(index));
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
    return value;
  }
};

using Arrays = std::map<std::string, Array>;

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Safetensors {
  Arrays arrays;
  std::map<std::string, std::string> metadata;

  // Throws std::runtime_error where the file is damaged.
  static Safetensors read(const std::filesystem::path& path) {
    const std::string data = read_file(path);
    uint64_t length = 0;
    if (data.size() >= 8) std::memcpy(&length, data.data(), 8);
    if (data.size() < 8 || length > data.size() - 8)
      throw std::runtime_error(path.string() + ": is not a safetensors file");
    const uint64_t rest = data.size() - 8 - length;
    Safetensors found;
    for (const auto& [name, entry] : Json::parse(data.substr(8, length)).members) {
      if (name == "__metadata__") {
        for (const auto& [key, text] : entry.members) found.metadata[key] = text.string;
        continue;
      }
      const std::string& code = entry.at("dtype").string;
      const Dtype& dtype = dtype_where(code, [&](const Dtype& d) { return code == d.code; });
      const auto& places = entry.at("data_offsets").items;
      const std::vector<int64_t> shape = Array::shape_of(entry);
      const uint64_t size = static_cast<uint64_t>(Array::count(shape)) * dtype.size;
      const uint64_t begin = places.empty() ? 0 : static_cast<uint64_t>(places[0].natural());
      if (places.size() != 2 || begin > rest || size > rest - begin)
        throw std::runtime_error(path.string() + ": ends before '" + name + "' does");
      Array array = Array::zeros(dtype, shape);
      std::memcpy(array.bytes.data(), data.data() + 8 + length + begin, array.bytes.size());
      found.arrays.emplace(name, std::move(array));
    }
    return found;
  }

  // Writes beside the file and renames, so that it is there whole or not at all.
  void write(const std::filesystem::path& path) const {
    std::string header = "{\"__metadata__\":{", data;
    for (const auto& [key, text] : metadata) {
      if (header.back() != '{') header += ',';
      header += Json::quoted(key) + ':' + Json::quoted(text);
    }
    header += '}';
    for (const auto& [name, array] : arrays) {
      std::string sizes;
      for (int64_t size : array.shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
      header += ',' + Json::quoted(name) + ":{\"dtype\":\"" + array.dtype->code +
                "\",\"shape\":[" + sizes + "],\"data_offsets\":[" + std::to_string(data.size());
      data.append(array.bytes.data(), array.bytes.size());
      header += ',' + std::to_string(data.size()) + "]}";
    }
    header += '}';
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t length = header.size();
    std::filesystem::path beside = path;
    beside += ".part";
    std::ofstream file(beside, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header << data;
    file.close();
    if (!file) throw std::runtime_error(path.string() + ": cannot be written");
    std::filesystem::rename(beside, path);
  }
};

}  // namespace onnxgrad
