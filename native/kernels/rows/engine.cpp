#include "kernels/rows/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "kernels/rows/convert.h"
#include "kernels/schedule/cut.h"
#include "kernels/schedule/stores.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

namespace descend::kernels {
namespace {

template <class W>
constexpr Element kWideElement = sizeof(W) == sizeof(double) ? Element::kFloat64 : Element::kFloat32;

constexpr int64_t kPiece = kExactColumns;

template <class W>
RowShape shape_of(const RowProblem<W>& p, const RowOperator<W>& op) {
  const RowCounts& counts = op.kernels.counts;
  const int64_t size = size_of(p.element);
  int64_t address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.out.data)) | p.out.stride | (p.stretch * size);
  if (counts.outputs > 1) address |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.second.data)) | p.second.stride;
  const int64_t unit = address % 64 == 0 ? 64 : address & -address;
  const bool alike =
      counts.outputs == 1 || ((p.out.data - p.second.data) % 64 == 0 && (p.out.stride - p.second.stride) % 64 == 0);
  return {.rows = p.rows,
          .columns = p.columns,
          .size = size,
          .inputs = counts.inputs,
          .outputs = counts.outputs,
          .column_numbers = counts.parameters + counts.column_sums,
          .together = counts.together,
          .is_forward = counts.column_sums == 0,
          .has_output = p.out.data != nullptr,
          .in_stretches = p.stretch > 0,
          .keeps = counts.keeps,
          .unit = unit,
          .alike = alike,
          .at_once = counts.at_once};
}

// What all rows take: what is read and written of each, in bytes. What is kept is exponentials, which take as long.
template <class W>
int64_t work_of(const RowProblem<W>& p, const RowOperator<W>& op) {
  const RowCounts& counts = op.kernels.counts;
  return p.rows * row_work<W>((counts.keeps ? 2 : 1) * (counts.inputs + counts.outputs) * p.columns);
}

// ---- Rows in double.

template <class W>
class ExactRows {
 public:
  ExactRows(const RowProblem<W>& p, const RowOperator<W>& op)
      : p_(p), op_(op), counts_(op.kernels.counts), size_(size_of(p.element)) {}

  // Also writes the row's statistics.
  void means(int64_t row, double* means) {
    means_from(counts_.keeps ? std::numeric_limits<double>::lowest() : 0.0, row, means);
    if (counts_.has_pivot && std::isfinite(means[0])) means_from(means[0], row, means);
    if (counts_.statistics == 0) return;
    double statistics[kMostNumbers];
    op_.exact_statistics(numbers_, means, statistics);
    for (int i = 0; i < counts_.statistics; ++i) {
      if (p_.statistics[i] != nullptr) p_.statistics[i][row] = static_cast<W>(statistics[i]);
    }
  }

  // To `to`, if it is not null; add(i, c, term) adds to sum i of column c of the part.
  template <class Add>
  void results(const RowPart& part, const double* means, char* const* to, const Add& add) {
    const auto& [row, begin, end] = part;
    double out[kMostOutputs * kPiece], terms[kMostSums][kPiece];
    double* const column_terms[kMostSums] = {terms[0], terms[1]};
    for (int64_t c = begin; c < end; c += kPiece) {
      const int64_t n = read(row, c, std::min(kPiece, end - c));
      op_.exact_map(n, in_, beside_, numbers_, means, out, column_terms);
      if (counts_.masks_results) {
        const uint8_t* const mask = mask_of(row, c, n);
        for (int64_t j = 0; j < n; ++j) {
          if (mask[j] != 0) out[j] = 0;
        }
      }
      for (int i = 0; to != nullptr && i < counts_.outputs; ++i) {
        convert_span(Element::kFloat64, out + i * kPiece, p_.element, to[i] + (c - begin) * size_, n);
      }
      for (int i = 0; i < counts_.column_sums; ++i) {
        for (int64_t j = 0; j < n; ++j) add(i, c - begin + j, terms[i][j]);
      }
    }
  }

 private:
  void means_from(double pivot, int64_t row, double* means) {
    std::fill_n(means, kMostMeans, 0.0);
    means[counts_.row_sums] = pivot;
    for (int64_t c = 0; c < p_.columns; c += kPiece) {
      const int64_t n = read(row, c, std::min(kPiece, p_.columns - c));
      op_.exact_sums(n, in_, beside_, numbers_, means);
    }
    if (counts_.takes_totals) return;
    for (int i = 0; i < counts_.row_sums; ++i) means[i] /= static_cast<double>(p_.columns);
  }

  // n columns, until the next call.
  const uint8_t* mask_of(int64_t row, int64_t c, int64_t n) {
    return MaskCursor(p_.mask, row).row().columns(c, n, mask_);
  }

  int64_t read(int64_t row, int64_t c, int64_t n) {
    for (int i = 0; i < counts_.inputs; ++i) {
      convert_span(p_.element, p_.in[i].row(row) + c * size_, Element::kFloat64, values_[i], n);
      in_[i] = values_[i];
    }
    if (counts_.keeps) {
      const uint8_t* const mask = mask_of(row, c, n);
      for (int64_t j = 0; j < n; ++j) values_[counts_.inputs][j] = mask[j] != 0;
      in_[counts_.inputs] = values_[counts_.inputs];
    }
    for (int i = 0; i < counts_.parameters; ++i) {
      const auto& [wide, own] = p_.parameters[i];
      double* to = values_[kMostInputs + i];
      if (p_.stretch > 0) {
        for (int64_t j = 0; j < n; ++j) to[j] = static_cast<double>(wide[p_.stretch_of(row, c + j)]);
      } else if (wide != nullptr) {
        convert_span(kWideElement<W>, wide + c, Element::kFloat64, to, n);
      } else {
        convert_span(p_.element, static_cast<const char*>(own) + c * size_, Element::kFloat64, to, n);
      }
      beside_[i] = to;
    }
    for (int i = 0; i < counts_.numbers; ++i) numbers_[i] = static_cast<double>(p_.numbers[i][row]);
    std::copy_n(p_.scalars, counts_.scalars, numbers_ + counts_.numbers);
    if (op_.exact_combine != nullptr) op_.exact_combine(n, in_, numbers_);
    return n;
  }

  const RowProblem<W>& p_;
  const RowOperator<W>& op_;
  const RowCounts& counts_;
  int64_t size_;
  double values_[kMostInputs + kMostParameters][kPiece];
  double* in_[kMostInputs];
  const double* beside_[kMostParameters];
  double numbers_[kMostNumbers + kMostScalars];
  uint8_t mask_[kPiece];
};

// ---- Few rows with many columns: the threads share some rows, each taking blocks of columns.

template <class W>
void share_rows(const RowCall<W>& call, double* sums) {
  const RowProblem<W>& p = call.problem;
  const RowSchedule& s = call.schedule;
  const RowKernels<W>& kernels = call.op.kernels;
  const int64_t work = work_of(p, call.op);
  SharedRows<W> shared;
  shared.sums = sums;
  const auto group_at = [&](int64_t row) { return RowGroup{row, std::min(s.together, p.rows - row)}; };
  const auto begin_group = [&](int64_t row) {
    const FixedFpEnvironment environment;
    shared.below = group_at(row);
    kernels.find_pivots(call, shared);
  };
  const auto sum_blocks = [&] {
    parallel_for(blocks_in(p.columns), work, [&](int64_t b) { kernels.block_sums(call, shared, b); });
  };
  const auto find_terms = [&](bool again) {
    const FixedFpEnvironment environment;
    return kernels.find_terms(call, shared, again);
  };
  begin_group(0);
  sum_blocks();  // without results, too: they say which rows are computed in double, and so are their column sums
  while (shared.below.rows > 0) {
    if (!find_terms(false)) {
      sum_blocks();
      find_terms(true);
    }
    shared.group = shared.below;
    begin_group(shared.group.row + shared.group.rows);
    // The sums of the group below come with the results.
    const int64_t piece = shared.below.rows > 0 ? kBlockColumns : s.piece;
    parallel_for(ceil_div(p.columns, piece), work,
                 [&](int64_t i) { kernels.results(call, shared, i * piece, std::min(piece, p.columns - i * piece)); });
  }
}

// The part of a gradient's schedule that follows from the shape alone.
RowSchedule shape_schedule(int64_t rows, int64_t columns, Element element, int inputs) {
  return gradient_schedule({.rows = rows,
                            .columns = columns,
                            .size = size_of(element),
                            .inputs = inputs,
                            .outputs = 1,
                            .column_numbers = 0,
                            .together = 1,
                            .is_forward = false,
                            .has_output = true,
                            .in_stretches = false,
                            .keeps = false,
                            .unit = 64,
                            .alike = true,
                            .at_once = columns});
}

}  // namespace

template <class W>
void exact_means(const RowCall<W>& call, int64_t row, double* means) {
  ExactRows<W>(call.problem, call.op).means(row, means);
}

template <class W>
void exact_results(const RowCall<W>& call, const RowPart& part, const double* means, char* const* out,
                   W* const* column_sums) {
  ExactRows<W> exact(call.problem, call.op);
  double own[kMostMeans];
  if (means == nullptr) exact.means(part.row, own);
  exact.results(part, means == nullptr ? own : means, out, [&](int i, int64_t c, double term) {
    W& sum = column_sums[i][c];
    sum = static_cast<W>(static_cast<double>(sum) + term);
  });
}

template <class W>
void exact_narrow(const RowCall<W>& call, int64_t row, double* const* chains, W* const* results) {
  const RowProblem<W>& p = call.problem;
  ExactRows<W> exact(p, call.op);
  alignas(8) char rounded[kMostOutputs][kMostNarrow * sizeof(double)];
  char* const to[kMostOutputs] = {rounded[0], rounded[1]};
  double means[kMostMeans];
  exact.means(row, means);
  exact.results({row, 0, p.columns}, means, results == nullptr ? nullptr : to,
                [&](int i, int64_t c, double term) { chains[i][c * kNarrowLanes] += term; });
  for (int i = 0; results != nullptr && i < call.op.kernels.counts.outputs; ++i) {
    convert_span(p.element, rounded[i], kWideElement<W>, results[i], p.columns);
  }
}

template <class W>
W* kept_room() {
  // The second block is for what whole packs have behind the end of the first.
  constexpr size_t kLine = 64, kBytes = (kKeptInRoom<W> + 2 * kBlockColumns) * sizeof(W);
  thread_local std::unique_ptr<char[]> memory;
  if (memory == nullptr) memory.reset(new (std::nothrow) char[kLine + kBytes]);
  void* room = memory.get();
  size_t size = kLine + kBytes;
  return static_cast<W*>(std::align(kLine, kBytes, room, size));
}

int64_t gradient_slots(int64_t rows, int64_t columns, Element element, int inputs) {
  const RowSchedule s = shape_schedule(rows, columns, element, inputs);
  if (!s.by_columns) return s.chunks;
  return rows > s.together ? 1 : 0;
}

size_t gradient_scratch(int64_t rows, int64_t columns, Element element, int inputs) {
  const RowSchedule s = shape_schedule(rows, columns, element, inputs);
  return s.by_columns ? static_cast<size_t>(blocks_in(columns) * s.together * kMostSums) * sizeof(double) : 0;
}

template <class W>
void run_gradient(const RowProblem<W>& p, const RowOperator<W>& op, void* scratch) {
  if (p.columns <= 0) return;
  const RowSchedule s = gradient_schedule(shape_of(p, op));
  if (p.rows <= 0) {
    for (int i = 0; i < op.kernels.counts.column_sums; ++i) {
      const auto& to = p.sums[i];
      if (to.slots != nullptr) std::fill_n(to.slots, p.columns, 0.0);
      if (to.wide != nullptr) std::fill_n(to.wide, p.columns, W{0});
      if (to.own != nullptr) std::memset(to.own, 0, static_cast<size_t>(p.columns * size_of(p.element)));
    }
  } else if (s.by_columns) {
    share_rows<W>({p, op, s}, static_cast<double*>(scratch));
  } else {
    const int64_t rows = s.taken * s.chunk;
    const RowCall<W> call{p, op, s};
    parallel_for(s.chunks == 1 ? 1 : ceil_div(s.chunks, s.taken), work_of(p, op),
                 [&](int64_t i) { op.kernels.rows(call, i * rows, std::min((i + 1) * rows, p.rows)); });
  }
}

size_t forward_scratch(int64_t rows, int64_t columns, Element element, int parameters, int inputs) {
  if (!may_split_loose_columns(columns)) return 0;
  const int64_t size = size_of(element), together = rows_together(rows, inputs * columns * size);
  const int64_t shared = shares_parameters(columns, size) ? parameters * whole_packs<float>(columns) : 0;
  return static_cast<size_t>(
      std::max<int64_t>(blocks_in(columns) * together * kMostSums * sizeof(double), shared * sizeof(float)));
}

template <class W>
void run_forward(const RowProblem<W>& p, const RowOperator<W>& op, void* scratch) {
  if (p.rows <= 0 || p.columns <= 0) return;
  const RowSchedule s = forward_schedule(shape_of(p, op));
  RowCall<W> call{p, op, s};
  if (s.by_columns) return share_rows<W>(call, static_cast<double*>(scratch));
  const int parameters = op.kernels.counts.parameters;
  if (p.stretch == 0 && parameters > 0 && shares_parameters(p.columns, size_of(p.element))) {
    call.parameters = static_cast<W*>(scratch);
    parallel_for(blocks_in(p.columns), parameters * p.columns * static_cast<int64_t>(sizeof(W)),
                 [&](int64_t b) { op.kernels.share_parameters(call, b); });
  }
  int64_t chunk = s.taken;
  parallel_for(
      ceil_div(p.rows, chunk), work_of(p, op),
      [&](int threads) {
        if (threads == 1) chunk = p.rows;
        return ceil_div(p.rows, chunk);
      },
      [&](int64_t i) { op.kernels.rows(call, i * chunk, std::min((i + 1) * chunk, p.rows)); });
}

template void exact_means(const RowCall<float>&, int64_t, double*);
template void exact_results(const RowCall<float>&, const RowPart&, const double*, char* const*, float* const*);
template void exact_narrow(const RowCall<float>&, int64_t, double* const*, float* const*);
template void exact_means(const RowCall<double>&, int64_t, double*);
template void exact_results(const RowCall<double>&, const RowPart&, const double*, char* const*, double* const*);
template void exact_narrow(const RowCall<double>&, int64_t, double* const*, double* const*);
template float* kept_room();
template double* kept_room();
template void run_gradient(const RowProblem<float>& p, const RowOperator<float>& op, void* scratch);
template void run_gradient(const RowProblem<double>& p, const RowOperator<double>& op, void* scratch);
template void run_forward(const RowProblem<float>& p, const RowOperator<float>& op, void* scratch);
template void run_forward(const RowProblem<double>& p, const RowOperator<double>& op, void* scratch);

}  // namespace descend::kernels
