// Trained weights as initializers of predict.onnx: a model to deploy, with the same bytes as Python's
// `Trainer.deploy` writes; see "Export" in `onnxgrad help step-format`. It needs no onnxruntime.
//
// An ONNX file is a protobuf message: fields, each a key (number * 8 + kind of content) and a content.
// ModelProto has ir_version (1), which comes first, graph (7) and metadata_props (14: key 1, value 2);
// GraphProto has initializer (5: dims 1, data_type 2, name 8, raw_data 9) and input (11: name 1).
#pragma once

#include <algorithm>
#include <functional>

#include "safetensors.hpp"

namespace onnxgrad {
namespace protobuf {

inline std::string varint(uint64_t value) {
  std::string made;
  for (; value > 127; value >>= 7) made += static_cast<char>((value & 127) | 128);
  return made + static_cast<char>(value);
}

inline std::string field(uint64_t number, const std::string& content) {
  return varint(number * 8 + 2) + varint(content.size()) + content;
}

// A field that holds bytes. The field begins at `first`, its content at `begin`.
struct Field {
  uint64_t number;
  size_t first, begin, end;
};

inline std::vector<Field> fields(const std::string& message) {
  size_t at = 0;
  const auto number = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (at >= message.size() || shift > 63) throw std::runtime_error("this is not an ONNX file");
      const auto byte = static_cast<unsigned char>(message[at++]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  std::vector<Field> found;
  while (at < message.size()) {
    const size_t first = at;
    const uint64_t key = number(), kind = key % 8;
    if (kind == 0) {
      number();
      continue;
    }
    if (kind != 1 && kind != 2 && kind != 5) throw std::runtime_error("this is not an ONNX file");
    const uint64_t size = kind == 2 ? number() : kind == 1 ? 8 : 4;
    if (size > message.size() - at) throw std::runtime_error("the ONNX file ends too early");
    if (kind == 2) found.push_back({key / 8, first, at, at + static_cast<size_t>(size)});
    at += static_cast<size_t>(size);
  }
  return found;
}

// The content of the last field of this number; empty if there is none.
inline std::string content(const std::string& message, uint64_t number) {
  std::string found;
  for (const Field& f : fields(message))
    if (f.number == number) found = message.substr(f.begin, f.end - f.begin);
  return found;
}

// A message without the fields that `drops` accepts. `added`, fields of a number, stand before the
// first one of a greater number, where protobuf writes them.
inline std::string edited(const std::string& message, uint64_t number, const std::string& added,
                          const std::function<bool(uint64_t, const std::string&)>& drops) {
  std::string made;
  size_t from = 0;
  bool done = false;
  for (const Field& f : fields(message)) {
    if (f.number > number && !done) {
      made += message.substr(from, f.first - from) + added;
      from = f.first;
      done = true;
    }
    if (!drops(f.number, message.substr(f.begin, f.end - f.begin))) continue;
    made += message.substr(from, f.first - from);
    from = f.end;
  }
  return made + message.substr(from) + (done ? "" : added);
}

}  // namespace protobuf

// The values with the averages that the step keeps in place of the trained weights. Throws
// std::runtime_error.
inline Arrays averaged(const Json& manifest, Arrays values) {
  const Json* averages = manifest.at("inputs").find("average");
  if (averages == nullptr || averages->items.empty())
    throw std::runtime_error("the step keeps no average: build it with --average");
  for (const Json& input : averages->items) {
    const std::string& of = input.at("of").string;
    const Array& average = values.at(input.at("name").string);
    if (average.dtype != values.at(of).dtype)
      throw std::runtime_error("'" + of + "' and its average differ in type: export in Python");
    values[of] = average;
  }
  return values;
}

// The bytes of the model to deploy: those of predict.onnx with these values after so many steps.
// Throws std::runtime_error.
inline std::string with_initializers(const std::string& predict, const Json& manifest,
                                     const Arrays& values, int64_t steps) {
  using protobuf::content, protobuf::edited, protobuf::field, protobuf::varint;
  const std::string graph = content(predict, 7);
  std::vector<std::string> read, filled;
  for (const protobuf::Field& f : protobuf::fields(graph))
    if (f.number == 11) read.push_back(content(graph.substr(f.begin, f.end - f.begin), 1));
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::string tensors, listed;
  for (const char* role : {"parameter", "statistic"}) {
    const Json* inputs = manifest.at("inputs").find(role);
    if (inputs == nullptr) continue;
    for (const Json& input : inputs->items) {
      const std::string& name = input.at("name").string;
      if (!has(read, name)) continue;
      const Array& array = values.at(name);
      std::string tensor;
      for (int64_t size : array.shape) tensor += '\x08' + varint(static_cast<uint64_t>(size));
      tensor += '\x10' + varint(static_cast<uint64_t>(array.dtype->number));
      tensor += field(8, name) + field(9, {array.bytes.begin(), array.bytes.end()});
      tensors += field(5, tensor);
      listed += (filled.empty() ? "" : ",") + Json::quoted(name);
      filled.push_back(name);
    }
  }
  // up to IR 3 initializers must be inputs
  const bool old = predict.size() > 1 && predict[0] == 8 && predict[1] < 4;
  const std::string inside = edited(graph, 5, tensors, [&](uint64_t number, const std::string& f) {
    return number == 11 && !old && has(filled, content(f, 1));
  });
  const std::string model =
      edited(predict, 7, field(7, inside), [](uint64_t number, const std::string&) {
        return number == 7;
      });
  const std::string key = "onnxgrad.trained";
  const std::string text =
      "{\"weights\":[" + listed + "],\"steps\":" + std::to_string(steps) + "}";
  return edited(model, 14, field(14, field(1, key) + field(2, text)),
                [&](uint64_t number, const std::string& f) {
                  return number == 14 && content(f, 1) == key;
                });
}

}  // namespace onnxgrad
