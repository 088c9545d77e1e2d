// Shapes that an operator's table asks for: the text of each parameter, "[A1, ..., An, R1, ..., Rk], rank 2 to 8" or
// "as x", is read, and "[N] or [N, 1]" by chance. A name stands for a dimension, "2 H" for twice one, "A1, ..., An" for
// some; each is the same in all texts of a call.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "bytes.h"
#include "call.h"
#include "operators/operator.h"

namespace fuzz {

class Shapes {
 public:
  Shapes(Bytes& bytes, const descend::Operator& op) : bytes_(bytes), op_(op) {}

  Shape of(std::string_view text);
  // The operator's text, by which a shape may be another one.
  void set_text(const char* text) { text_ = text != nullptr ? text : ""; }
  // An attribute that counts dimensions; -1 if the name is of another one.
  int64_t number(std::string_view name);
  // The normalised dimensions, "R1, ..., Rk"; empty where no text has them.
  Shape normalized() const;
  // Whether all texts were understood, and no dimension is 0: then the operator must take the shapes.
  bool certain() const { return certain_; }

 private:
  Bytes& bytes_;
  const descend::Operator& op_;
  std::map<std::string, Shape, std::less<>> known_;
  std::map<std::string_view, std::string_view> choices_;  // by the whole text
  std::map<std::string_view, Shape> lists_;               // by the whole text: that of a call's tensors that are alike
  std::string_view text_;
  bool certain_ = true;

  const Shape& block(std::string_view name, int64_t most);
  std::string_view choose(std::string_view text);
  Shape list(std::string_view text);
};

}  // namespace fuzz
