// Sentences: what they are joined of.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <locale>

#include "runtime/status.h"

using namespace descend;

TEST_CASE("a sentence is joined of texts, letters and numbers") {
  const std::string owned = "of a string";
  CHECK_EQ(concat("text, ", owned, std::string_view(", of a view"), ',', ' ', 7, " ", uint8_t{200}, " ", size_t{9}),
           "text, of a string, of a view, 7 200 9");
  CHECK_EQ(concat(std::numeric_limits<int64_t>::min(), ":", std::numeric_limits<uint64_t>::max()),
           "-9223372036854775808:18446744073709551615");
  CHECK_EQ(concat(true, " ", 0.1f, " ", -1.5e-300, " ", std::numeric_limits<double>::infinity()),
           "1 0.1 -1.5e-300 inf");
  CHECK_EQ(concat(), "");
  CHECK_EQ(concat("a path is ", static_cast<const char*>(nullptr), "."), "a path is null.");
  CHECK_EQ(concat(std::string(1000, 'x'), '.').size(), 1001);
}

TEST_CASE("a failure is its code and its sentence") {
  const Status status = failure(Code::kTilingError, "gamma has rank ", 9, ".");
  CHECK_EQ(status.code, Code::kTilingError);
  CHECK_EQ(status.sentence, "gamma has rank 9.");
  CHECK(!status.no_memory);
}

TEST_CASE("numbers have as many digits as asked for, and a point") {
  CHECK_EQ(in_digits(1.0 / 3, 6), "0.333333");
  CHECK_EQ(in_digits(1.0 / 3, 17), "0.33333333333333331");
  setlocale(LC_ALL, "de_DE.UTF-8");
  CHECK_EQ(in_digits(0.5, 6), "0.5");
  setlocale(LC_ALL, "C");
}
