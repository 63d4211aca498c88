// JSON as far as a manifest and a header of safetensors need it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace onnxgrad {

struct Json {
  enum Kind { null, boolean, number, text, list, object } kind = null;
  double value = 0;  // of a number, or 1 for true
  std::string string;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order of the file

  // The member of that name, nullptr where there is none.
  const Json* find(const std::string& name) const {
    for (const auto& [key, member] : members)
      if (key == name) return &member;
    return nullptr;
  }

  // The member of that name. Throws where there is none.
  const Json& at(const std::string& name) const {
    if (const Json* found = find(name)) return *found;
    throw std::runtime_error("'" + name + "' is missing");
  }

  // A whole number, or `otherwise` if there is no such member.
  int64_t whole(const std::string& name, int64_t otherwise) const {
    const Json* found = find(name);
    return found ? static_cast<int64_t>(found->value) : otherwise;
  }

  // This value as a size or a place in a file. Throws where it is none.
  int64_t natural() const {
    if (kind != number || !(value >= 0 && value < 9e15)) throw std::runtime_error("no size");
    return static_cast<int64_t>(value);
  }

  std::string text_or(const std::string& name, const std::string& otherwise) const {
    const Json* found = find(name);
    return found ? found->string : otherwise;
  }

  // Reads a text. Throws std::runtime_error if it is not JSON.
  static Json parse(const std::string& text) {
    Reader reader{text};
    Json found = reader.any(0);
    if (reader.blank() != '\0') reader.fail();
    return found;
  }

  // A text between quotation marks.
  static std::string quoted(const std::string& text) {
    static const char* digits = "0123456789abcdef";
    std::string made = "\"";
    for (unsigned char c : text) {
      if (c == '"' || c == '\\') (made += '\\') += static_cast<char>(c);
      else if (const char* at = c ? std::strchr("\bb\tt\nn\ff\rr", c) : nullptr; at && c < 0x20)
        (made += '\\') += at[1];
      else if (c < 0x20) ((made += "\\u00") += digits[c >> 4]) += digits[c & 15];
      else made += static_cast<char>(c);
    }
    return made + '"';
  }

 private:
  struct Reader {
    const std::string& in;
    size_t at = 0;

    [[noreturn]] void fail() const {
      throw std::runtime_error("no JSON, at byte " + std::to_string(at));
    }

    char peek() const { return at < in.size() ? in[at] : '\0'; }

    char blank() {  // the next character that is none
      while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') at++;
      return peek();
    }

    void expect(const std::string& word) {
      if (in.compare(at, word.size(), word) != 0) fail();
      at += word.size();
    }

    bool next(char close) {  // of a list or object: whether another entry follows
      if (blank() == ',') return at++, true;
      expect(std::string(1, close));
      return false;
    }

    Json any(int depth) {
      Json made;
      if (depth > 100) fail();
      switch (blank()) {
        case '{':
          made.kind = object;
          at++;
          if (blank() == '}') return at++, made;
          do {
            blank();
            std::string key = word();
            blank();
            expect(":");
            made.members.emplace_back(std::move(key), any(depth + 1));
          } while (next('}'));
          return made;
        case '[':
          made.kind = list;
          at++;
          if (blank() == ']') return at++, made;
          do made.items.push_back(any(depth + 1));
          while (next(']'));
          return made;
        case '"':
          made.kind = text;
          made.string = word();
          return made;
        case 't':
          made.kind = boolean;
          made.value = 1;
          return expect("true"), made;
        case 'f':
          made.kind = boolean;
          return expect("false"), made;
        case 'n':
          return expect("null"), made;
      }
      char* end = nullptr;
      made.kind = number;
      made.value = std::strtod(in.c_str() + at, &end);
      if (end == in.c_str() + at) fail();
      at = static_cast<size_t>(end - in.c_str());
      return made;
    }

    std::string word() {
      std::string made;
      expect("\"");
      while (peek() != '"') {
        if (at >= in.size()) fail();
        char c = in[at++];
        if (c == '\\') escape(made);
        else made += c;
      }
      at++;
      return made;
    }

    void escape(std::string& made) {
      static const std::map<char, char> plain{{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                              {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};
      char c = peek();
      at++;
      if (auto found = plain.find(c); found != plain.end()) {
        made += found->second;
        return;
      }
      if (c != 'u') fail();
      uint32_t code = unit();
      if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
        expect("\\u");
        code = 0x10000 + ((code - 0xD800) << 10) + (unit() - 0xDC00);
      }
      encode(made, code);
    }

    uint32_t unit() {
      const std::string digits = in.substr(at, 4);
      char* end = nullptr;
      uint32_t code = static_cast<uint32_t>(std::strtoul(digits.c_str(), &end, 16));
      if (digits.size() != 4 || *end != '\0') fail();
      at += 4;
      return code;
    }

    static void encode(std::string& made, uint32_t code) {  // as UTF-8
      auto byte = [&](uint32_t bits) { made += static_cast<char>(bits); };
      if (code < 0x80) return byte(code);
      if (code < 0x800) {
        byte(0xC0 | code >> 6);
      } else {
        if (code < 0x10000) {
          byte(0xE0 | code >> 12);
        } else {
          byte(0xF0 | code >> 18);
          byte(0x80 | (code >> 12 & 63));
        }
        byte(0x80 | (code >> 6 & 63));
      }
      byte(0x80 | (code & 63));
    }
  };
};

}  // namespace onnxgrad
