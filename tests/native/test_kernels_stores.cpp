#include <doctest/doctest.h>

#include "kernels/schedule/cut.h"
#include "kernels/schedule/rows.h"

using namespace descend::kernels;

namespace {

constexpr RowShape kForward{.rows = 0,
                            .columns = 0,
                            .size = 0,
                            .inputs = 1,
                            .outputs = 1,
                            .column_numbers = 0,
                            .together = 1,
                            .is_forward = true,
                            .has_output = true,
                            .in_stretches = false,
                            .keeps = false,
                            .unit = 64,
                            .alike = true,
                            .at_once = 16};

}  // namespace

TEST_CASE("rows that begin where lines do go by way of no stage, which might not hold one") {
  // More bytes than any last-level cache holds, but results so small that the caches keep them.
  RowShape shape = kForward;
  shape.rows = 1;
  shape.size = 4;
  shape.inputs = 1 << 30;
  shape.keeps = true;
  for (const int64_t columns : {16, 3072}) {
    shape.columns = columns;
    shape.unit = 64;
    const RowSchedule aligned = forward_schedule(shape);
    CHECK((!aligned.staged && !aligned.streams));
    shape.unit = 4;
    const RowSchedule shifted = forward_schedule(shape);
    CHECK(shifted.staged == (columns == 16));
    CHECK((shifted.streams && shifted.in_lines) == (columns == 3072));
  }
}

TEST_CASE("short rows whose lines would be stored in pieces go by way of a stage, also where they are aligned") {
  RowShape shape = kForward;
  shape.rows = int64_t{1} << 24;
  shape.columns = 128;
  shape.size = 2;
  shape.column_numbers = 1;
  shape.together = 2;
  shape.at_once = 32;
  const RowSchedule lines = forward_schedule(shape);
  CHECK((lines.is_short && lines.streams && !lines.staged));
  shape.at_once = 16;
  const RowSchedule pieces = forward_schedule(shape);
  CHECK((pieces.is_short && !pieces.streams && pieces.staged));
  shape.outputs = 2;
  const RowSchedule two = forward_schedule(shape);
  CHECK((!two.streams && two.staged == !kAsksSecondLevel));
  shape.columns = 4096;  // long rows of two results have no stage
  shape.unit = 2;
  const RowSchedule two_long = forward_schedule(shape);
  CHECK((!two_long.is_short && !two_long.staged));
}
