// What makes an operator of a program on rows: the last line of its file.
#pragma once

#include <algorithm>

#include "kernels/rows/engine.h"

// A function template `name` that runs a gradient on rows of T, with its instantiations. It stands in namespace
// descend::kernels under HWY_ONCE, below the plain functions exact_sums and exact_map; Program is compiled for each
// instruction set (kernels/dispatch.h), whose row_kernels it takes from rows/shared-inl.h. Whoever runs the operator
// declares it: template <class T> void name(const RowProblem<Wide<T>>& problem, void* scratch).
#define DESCEND_ROW_GRADIENT(name, Program)                                                                         \
  template <class T>                                                                                                \
  void name(const RowProblem<Wide<T>>& problem, void* scratch) {                                                    \
    static const RowOperator<Wide<T>> op{                                                                           \
        .kernels = DESCEND_CHOOSE_FOR(T, Program::kernels<T>)(), .exact_sums = exact_sums, .exact_map = exact_map}; \
    run_gradient(problem, op, scratch);                                                                             \
  }                                                                                                                 \
  DESCEND_INSTANTIATE_ROWS(name)

// The same of a forward, which also has the plain function exact_statistics, and of_nothing: the statistics of a row
// without columns.
#define DESCEND_ROW_FORWARD(name, Program)                                                        \
  template <class T>                                                                              \
  void name(const RowProblem<Wide<T>>& problem, void* scratch) {                                  \
    static const RowOperator<Wide<T>> op{.kernels = DESCEND_CHOOSE_FOR(T, Program::kernels<T>)(), \
                                         .exact_sums = exact_sums,                                \
                                         .exact_statistics = exact_statistics,                    \
                                         .exact_map = exact_map};                                 \
    for (int i = 0; problem.columns <= 0 && i < op.kernels.counts.statistics; ++i) {              \
      if (problem.statistics[i] == nullptr) continue;                                             \
      std::fill_n(problem.statistics[i], problem.rows, static_cast<Wide<T>>(of_nothing[i]));      \
    }                                                                                             \
    run_forward(problem, op, scratch);                                                            \
  }                                                                                               \
  DESCEND_INSTANTIATE_ROWS(name)

#define DESCEND_INSTANTIATE_ROWS(name)                           \
  template void name<float16>(const RowProblem<float>&, void*);  \
  template void name<bfloat16>(const RowProblem<float>&, void*); \
  template void name<float>(const RowProblem<float>&, void*);    \
  template void name<double>(const RowProblem<double>&, void*);
