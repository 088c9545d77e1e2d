// What makes an operator of a program on rows: the last line of its file.
#pragma once

#include <algorithm>

#include "kernels/rows/engine.h"

// A function template `name` that runs a gradient on rows of T, in all versions (kernels/simd/dispatch.h). It stands
// outside any namespace, behind Program in HWY_NAMESPACE and the plain functions exact_sums and exact_map in
// DESCEND_TARGET. Whoever runs the operator declares it: template <class T> void name(const RowProblem<Wide<T>>&
// problem, void* scratch). What follows are further members of RowOperator.
#define DESCEND_ROW_GRADIENT(name, Program, ...)                                             \
  DESCEND_ROW_KERNEL(name, {                                                                 \
    static const RowOperator<Wide<T>> op{.kernels = Program::template kernels<T>(),          \
                                         .exact_sums = exact_sums,                           \
                                         .exact_map = exact_map __VA_OPT__(, ) __VA_ARGS__}; \
    run_gradient(problem, op, scratch);                                                      \
  })

// The same of a forward, which also has the plain function exact_statistics, and of_nothing: the statistics of a row
// without columns.
#define DESCEND_ROW_FORWARD(name, Program, ...)                                              \
  DESCEND_ROW_KERNEL(name, {                                                                 \
    static const RowOperator<Wide<T>> op{.kernels = Program::template kernels<T>(),          \
                                         .exact_sums = exact_sums,                           \
                                         .exact_statistics = exact_statistics,               \
                                         .exact_map = exact_map __VA_OPT__(, ) __VA_ARGS__}; \
    for (int i = 0; problem.columns <= 0 && i < op.kernels.counts.statistics; ++i) {         \
      if (problem.statistics[i] == nullptr) continue;                                        \
      std::fill_n(problem.statistics[i], problem.rows, static_cast<Wide<T>>(of_nothing[i])); \
    }                                                                                        \
    run_forward(problem, op, scratch);                                                       \
  })

#define DESCEND_ROW_KERNEL(name, ...)                                      \
  namespace descend::kernels::DESCEND_TARGET {                             \
  template <class T>                                                       \
  void name(const RowProblem<Wide<T>>& problem, void* scratch) __VA_ARGS__ \
  }                                                                        \
  DESCEND_KERNEL(void, name, (const RowProblem<Wide<T>>& problem, void* scratch), problem, scratch)
