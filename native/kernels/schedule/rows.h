// How a call on rows is carried out: plain data, made from its shape and the machine.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace descend::kernels {

inline constexpr int64_t kMostTileRows = 64;              // of a tile, at most: a bit each in a word
inline constexpr int64_t kLongTileRows = 4;               // of a tile of rows of more than one run
inline constexpr int64_t kMostTogether = 256;             // rows whose columns are cut, at a time
inline constexpr int64_t kTileBytes = int64_t{12} << 10;  // of short rows of all inputs, or one fold of rows

struct RowShape {
  int64_t rows;
  int64_t columns;
  int64_t size;        // bytes of an element
  int inputs;          // row streams that are read
  int outputs;         // and written
  int column_numbers;  // numbers a column beside them that stay in a cache: parameters and sums
  int together;        // rows that share loads of those, at most
  bool is_forward;     // without sums of columns
  bool has_output;
  bool in_stretches;  // parameters change every few columns: results are stored stretch by stretch, or as they come
  bool keeps;         // the first pass keeps what it sums
  int64_t unit;       // bytes that rows of results begin at multiples of: a power of 2, at most a line's
  bool alike;         // a row of each result begins at the same place of a line
  int64_t at_once;    // columns of a short row that are stored before those of the next
};

struct RowSchedule {
  // What decides in which order sums of columns are added: of the shape alone. Where there are none it changes no bit.
  int64_t chunk;  // rows whose column sums go to a slot
  int64_t chunks;
  int64_t stripe;    // rows whose column sums run in float
  bool by_columns;   // each thread takes some of the columns of the same rows
  int64_t together;  // how many rows that is at a time

  // What is up to the machine.
  bool is_short;  // rows are summed one by one and folded together
  int64_t tile;   // rows that are worked on together
  bool in_step;   // the first pass over a tile takes turns with the second over the tile above it
  bool early;     // the terms of a tile, which take long, are computed before the results of the tile above it
  int64_t ahead;  // prefetch distance in bytes, for each row of a tile; 0: none
  bool in_order;  // a few columns' reads are done before the next are begun
  bool streams;   // results are stored past the caches
  bool in_lines;  // and rows of them may begin anywhere: the first vector of one ends where a line begins
  bool staged;    // results go past the caches by way of a small buffer, since they are not aligned
  int64_t piece;  // columns of shared rows that a thread takes at a time
  int64_t taken;  // chunks that a thread takes at a time; of forwards, rows
};

// Of rows with column sums.
RowSchedule gradient_schedule(const RowShape& shape);

// Of rows without, which know nothing of each other: no sum depends on how they are cut. A thread takes `taken` rows at
// a time.
RowSchedule forward_schedule(const RowShape& shape);

// How many rows are worked on at a time where columns are cut. row_bytes: of all inputs.
int64_t rows_together(int64_t rows, int64_t row_bytes);
// Whether the threads share the parameters of forwards' rows, which have size bytes an element: no thread has room for
// them.
bool shares_parameters(int64_t columns, int64_t size);

}  // namespace descend::kernels
