// The checks that every operator shares, in the order that the contract gives, then the operator's own.
#include "operators/prepare.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kernels/simd/isa.h"
#include "runtime/fp_environment.h"
#include "runtime/memory.h"
#include "runtime/thread_count.h"

namespace descend {
namespace {

int parameter_count(const Call& call) { return static_cast<int>(call.op->parameters.size()); }

const Parameter& parameter(const Call& call, int i) { return call.op->parameters[i]; }

// The tensors that are given and that the call checks.
class Tensors {
 public:
  struct Entry {
    int parameter;
    int place;  // its number among the tensor parameters
    const Tensor* tensor;
  };

  explicit Tensors(const Call& call) {
    int place = 0;
    for (int i = 0; i < parameter_count(call); ++i) {
      if (parameter(call, i).kind != Kind::kTensor) continue;
      const Tensor* tensor = call.tensor(i);
      if (tensor != nullptr && is_counted(call, i)) entries_[count_++] = {i, place, tensor};
      ++place;
    }
  }

  const Entry* begin() const { return entries_.data(); }
  const Entry* end() const { return begin() + count_; }

 private:
  std::array<Entry, kMaxParameters> entries_;
  size_t count_ = 0;
};

Status check_null(const Call& call) {
  for (int i = 0; i < parameter_count(call); ++i) {
    const bool optional = parameter(call, i).optional || (parameter(call, i).optional_on_host && call.on_host());
    if (call[i].state == Argument::State::kNull && !optional && is_counted(call, i)) {
      return call.fail(Code::kParamNullptr, call.name(i), " is null, but must be given.");
    }
  }
  for (int i = 0; i < parameter_count(call); ++i) {
    if (call[i].state == Argument::State::kForeign && is_counted(call, i)) {
      return call.fail(Code::kParamInvalid, call.name(i),
                       " is not one that this library created, or has been destroyed already.");
    }
  }
  return {};
}

Status check_product(const Call& call) {
  if (call.op->products.has(call.product)) return {};
  std::string where;
  for (const ProductInfo& entry : products()) {
    if (call.op->products.has(entry.product)) where += (where.empty() ? "" : ", ") + std::string(entry.name);
  }
  return call.fail(Code::kFindKernelError, "does not exist on ", info(call.product).name, ", only on ", where, ".");
}

// An argument that could not be read: the reader has the reason, so there is no sentence here.
Status check_read(const Call& call) {
  for (int i = 0; i < parameter_count(call); ++i) {
    if (call[i].state == Argument::State::kUnread && is_counted(call, i)) return Status{Code::kParamInvalid, {}};
  }
  return {};
}

// BFLOAT16 does not exist on two products, even if an operator's table has it.
DtypeSet allowed(const DtypeRow& row, int place, Product product) {
  const bool no_bfloat16 = product == Product::kAtlasInference || product == Product::kAtlasTraining;
  return no_bfloat16 ? row.sets[place].without(Dtype::kBfloat16) : row.sets[place];
}

Status check_dtypes(const Call& call, const Tensors& tensors) {
  // Looks for the row that fits, else for the row that the fewest tensors do not fit.
  const DtypeRow* closest = nullptr;
  auto fewest = std::numeric_limits<std::ptrdiff_t>::max();
  for (const DtypeRow& row : call.op->dtypes) {
    if (!row.products.has(call.product)) continue;
    const auto others = std::count_if(tensors.begin(), tensors.end(), [&](const Tensors::Entry& entry) {
      return !allowed(row, entry.place, call.product).has(entry.tensor->dtype);
    });
    if (others == 0) return {};
    if (others < fewest) {
      fewest = others;
      closest = &row;
    }
  }
  // First each tensor by itself: if no combination has its dtype, the message names that tensor.
  for (const auto& [i, place, tensor] : tensors) {
    DtypeSet possible;
    for (const DtypeRow& row : call.op->dtypes) {
      if (row.products.has(call.product)) possible = possible | allowed(row, place, call.product);
    }
    if (possible.has(tensor->dtype)) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has dtype ", dtype_name(tensor->dtype), ", but must be ",
                     list_of(possible), " on ", info(call.product).name, ".");
  }
  std::string given, better;
  for (const auto& [i, place, tensor] : tensors) {
    const std::string name = call.name(i);
    const DtypeSet wanted = allowed(*closest, place, call.product);
    given += (given.empty() ? "" : ", ") + name + " " + dtype_name(tensor->dtype);
    if (!wanted.has(tensor->dtype)) better += (better.empty() ? "" : " and ") + name + " " + list_of(wanted);
  }
  return call.fail(Code::kParamInvalid, "the dtypes ", given, " do not go together on ", info(call.product).name,
                   "; with ", better, " they would.");
}

Status check_formats(const Call& call, const Tensors& tensors) {
  for (const auto& [i, place, tensor] : tensors) {
    if (is_public(tensor->format)) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has format ", format_name(tensor->format),
                     ", but must have a public one: ND, NCHW, NHWC, NCL, NC, HWCN, NDHWC or NCDHW.");
  }
  return {};
}

// Checks layouts, and that an output shares memory with no other tensor, except that it may be exactly an input.
Status check_memory(const Call& call, const Tensors& tensors, std::array<ByteRange, kMaxParameters>& ranges) {
  for (const auto& [i, place, tensor] : tensors) {
    if (Status status = check_layout(*tensor, &ranges[i]); !status.ok()) {
      return call.fail(status.code, call.name(i), " ", status.sentence);
    }
    if (reinterpret_cast<uintptr_t>(tensor->data) % dtype_size(tensor->dtype) != 0) {
      return call.fail(Code::kParamInvalid, call.name(i),
                       " lies at an address that is not a multiple of its element size, ", dtype_size(tensor->dtype),
                       " bytes.");
    }
  }
  for (const auto& [out, out_place, output] : tensors) {
    if (parameter(call, out).role != Role::kOutput) continue;
    if (const SelfOverlap overlap = self_overlap(*output); overlap != SelfOverlap::kNo) {
      return call.fail(Code::kParamInvalid, call.name(out), " has shape ", to_string(output->shape), " and strides ",
                       to_string(output->strides),
                       overlap == SelfOverlap::kYes
                           ? ", so that its elements overlap each other; an output's must not."
                           : ", with which it would take too long to tell whether its elements overlap each other; an "
                             "output's must not.");
    }
    for (const auto& [other, other_place, tensor] : tensors) {
      if (other == out || !ranges[out].meets(ranges[other])) continue;
      const bool is_output = parameter(call, other).role == Role::kOutput;
      if (is_output && other < out) continue;
      const Sharing shared = sharing(*output, *tensor);
      if (shared == Sharing::kDisjoint || (shared == Sharing::kSame && !is_output)) continue;
      return call.fail(Code::kParamInvalid, call.name(out), " overlaps ", call.name(other), " in memory",
                       is_output
                           ? "; two outputs must not share any."
                           : "; an output may only be exactly one of the inputs (same address, shape, strides and "
                             "dtype) or share nothing with it.");
    }
  }
  return {};
}

Layout layout_of(const Call& call, const Tensors& tensors, const std::array<ByteRange, kMaxParameters>& ranges) {
  Layout layout;
  for (const auto& [i, place, tensor] : tensors) {
    if (tensor->data != nullptr) layout.placed |= uint32_t{1} << i;
    if (ranges[i].begin == ranges[i].end) continue;
    const auto data = reinterpret_cast<intptr_t>(tensor->data);
    const bool is_output = parameter(call, i).role == Role::kOutput;
    layout.entries[layout.count++] = {i, is_output, {ranges[i].begin - data, ranges[i].end - data}};
  }
  return layout;
}

// Whether no output overlaps another tensor.
bool are_apart(const Layout& layout, const Call& call) {
  std::array<ByteRange, kMaxParameters> ranges;
  for (int k = 0; k < layout.count; ++k) {
    const auto data = reinterpret_cast<intptr_t>(call[layout.entries[k].parameter].tensor.data);
    ranges[k] = {data + layout.entries[k].reach.begin, data + layout.entries[k].reach.end};
  }
  for (int k = 0; k < layout.count; ++k) {
    if (!layout.entries[k].is_output) continue;
    for (int j = 0; j < layout.count; ++j) {
      if (j != k && ranges[k].meets(ranges[j])) return false;
    }
  }
  return true;
}

bool are_same_views(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.format == b.format && a.offset == b.offset && a.shape == b.shape &&
         a.strides == b.strides && a.storage_shape == b.storage_shape;
}

// For arguments that are given. The addresses of tensors may differ.
bool are_same(Kind kind, const Argument& a, const Argument& b) {
  switch (kind) {
    case Kind::kTensor:
      return are_same_views(a.tensor, b.tensor);
    case Kind::kIntArray:
    case Kind::kBoolArray:
      return a.list == b.list;
    case Kind::kInt:
      return a.integer == b.integer;
    case Kind::kFloat:
      return std::bit_cast<uint64_t>(a.real) == std::bit_cast<uint64_t>(b.real);
    case Kind::kBool:
      return a.flag == b.flag;
    case Kind::kString:
      return a.text == b.text;
  }
  return false;
}

// Plans and kernels compute sizes in 64 bits: a few times the bytes of this many elements. Only a view that repeats one
// element can have more elements than that.
Status check_sizes(const Call& call, const Tensors& tensors) {
  constexpr int64_t kMost = int64_t{1} << 58;
  for (const auto& [i, place, tensor] : tensors) {
    if (tensor->elements() <= kMost) continue;
    return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(tensor->shape),
                     ", but 2^58 elements are the most that can be worked on.");
  }
  return {};
}

}  // namespace

Status prepare(const Call& call, Plan* plan) {
  for (const Status* variable : {&kernels::isa_status(), &num_threads_status()}) {
    if (!variable->ok()) return call.fail(Code::kParamInvalid, variable->sentence);
  }
  DESCEND_RETURN_IF_ERROR(check_null(call));
  DESCEND_RETURN_IF_ERROR(check_product(call));
  if (call.op->validate_first != nullptr) DESCEND_RETURN_IF_ERROR(call.op->validate_first(call));
  DESCEND_RETURN_IF_ERROR(check_read(call));
  const Tensors tensors(call);
  DESCEND_RETURN_IF_ERROR(check_dtypes(call, tensors));
  DESCEND_RETURN_IF_ERROR(check_formats(call, tensors));
  std::array<ByteRange, kMaxParameters> ranges;
  DESCEND_RETURN_IF_ERROR(check_memory(call, tensors, ranges));
  if (plan != nullptr) {
    DESCEND_RETURN_IF_ERROR(check_sizes(call, tensors));
    Layout layout = layout_of(call, tensors, ranges);
    layout.apart = are_apart(layout, call);
    plan->set_layout(layout);
  }
  const FixedFpEnvironment environment;  // a plan may round an attribute
  DESCEND_RETURN_IF_ERROR(call.op->validate_and_plan(call, plan));
  if (plan == nullptr || !plan->too_large()) return {};
  return call.fail(Code::kParamInvalid, "the workspace would be larger than 2^62 bytes.");
}

bool holds(const Plan& plan, const Call& made_for, const Call& call) {
  if (call.op != made_for.op || call.product != made_for.product) return false;
  const Layout& layout = plan.layout();
  if (!layout.apart || has_allocations()) return false;  // then prepare() must check that the tensors lie within them
  for (int i = 0; i < parameter_count(call); ++i) {
    const Argument &now = call[i], &before = made_for[i];
    if (now.state != before.state) return false;
    if (now.state == Argument::State::kNull) continue;
    const Kind kind = parameter(call, i).kind;
    if (!are_same(kind, before, now)) return false;
    if (kind != Kind::kTensor || !is_counted(call, i)) continue;
    const auto address = reinterpret_cast<uintptr_t>(now.tensor.data);
    const bool is_placed = (layout.placed >> i & 1) != 0;
    if (is_placed != (address != 0) || address % dtype_size(now.tensor.dtype) != 0) return false;
  }
  return are_apart(layout, call);
}

}  // namespace descend
