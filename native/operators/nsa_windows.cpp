#include "operators/nsa_windows.h"

namespace descend {
namespace {

template <class... Parts>
Status refused(const Call& call, const Parts&... parts) {
  return call.fail(Code::kTilingError, parts...);
}

int64_t windows_of(int64_t tokens, const NsaShape& shape) {
  return tokens < shape.width ? 0 : (tokens - shape.width) / shape.stride + 1;
}

void add_sequence(NsaShape* shape, int64_t first, int64_t tokens) {
  if (tokens == 0) return;
  const int64_t windows = windows_of(tokens, *shape);
  shape->sequences.push_back({first, tokens, shape->blocks, windows});
  shape->blocks += windows;
}

// Reads the sequences from act_seq_len.
Status read_sequences(const Call& call, const NsaParameters& p, NsaShape* shape) {
  const int64_t type = call[p.act_seq_len_type].integer;
  if (type != 0 && !(type == 1 && call.on_host())) {
    return refused(call, call.name(p.act_seq_len_type), " is ", type, ", but must be ", call.on_host() ? "0 or 1" : "0",
                   " on ", info(call.product).name, ".");
  }
  if (!call.given(p.act_seq_len) || call[p.act_seq_len].list.empty()) {
    add_sequence(shape, 0, shape->tokens);
    return {};
  }
  const Dims& list = call[p.act_seq_len].list;
  const char* name = call.name(p.act_seq_len);
  int64_t end = 0;
  for (uint64_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0) return refused(call, name, " has ", list[i], " at index ", i, ", but no length may be negative.");
    if (type == 0 && list[i] < end) {
      return refused(call, name, " has ", list[i], " at index ", i, " after ", end,
                     ", but cumulative lengths must not decrease.");
    }
    const int64_t tokens = type == 0 ? list[i] - end : list[i];
    if (tokens > shape->tokens - end) {
      return refused(call, name, " has ", list[i], " at index ", i, ", where the sequences pass the end of ",
                     call.name(p.input), ", which has ", shape->tokens, " tokens.");
    }
    add_sequence(shape, end, tokens);
    end += tokens;
  }
  if (end != shape->tokens && !call.on_host()) {
    return refused(call, name, " ends at ", end, ", but must end at the number of tokens of ", call.name(p.input), ", ",
                   shape->tokens, ".");
  }
  return {};
}

Status read_sizes(const Call& call, const NsaParameters& p, NsaShape* shape) {
  const Dims& input = call[p.input].tensor.shape;
  shape->tokens = input[0];
  shape->heads = input[1];
  shape->depth = input[2];
  shape->width = call[p.block_size].integer;
  shape->stride = call[p.stride].integer;
  for (int i : {p.block_size, p.stride}) {
    const int64_t value = call[i].integer;
    if (value < 1) return refused(call, call.name(i), " is ", value, ", but must be at least 1.");
    if (value % 16 != 0 && !call.on_host()) {
      return refused(call, call.name(i), " is ", value, ", but must be a multiple of 16 on ", info(call.product).name,
                     ".");
    }
  }
  return {};
}

Status check_atlas(const Call& call, const NsaParameters& p, const NsaShape& shape) {
  if (shape.width < shape.stride || (shape.width == shape.stride && !p.width_may_equal_stride)) {
    return refused(call, call.name(p.block_size), " is ", shape.width, ", but must be ",
                   p.width_may_equal_stride ? "at least " : "greater than ", call.name(p.stride), ", which is ",
                   shape.stride, ", on ", info(call.product).name, ".");
  }
  if (shape.depth % 16 != 0) {
    return refused(call, call.name(p.input), " has shape ", to_string(call[p.input].tensor.shape),
                   ", but its last dimension must be a multiple of 16 on ", info(call.product).name, ".");
  }
  return {};
}

}  // namespace

std::vector<DtypeRow> nsa_dtypes(size_t tensors) {
  const auto row = [&](ProductSet products, Dtype dtype) {
    return DtypeRow{products, std::vector<DtypeSet>(tensors, DtypeSet{dtype})};
  };
  const ProductSet host(Product::kHost);
  return {row(kNsaProducts, Dtype::kFloat16), row(kNsaProducts, Dtype::kBfloat16), row(host, Dtype::kFloat),
          row(host, Dtype::kDouble)};
}

Status check_nsa_rank(const Call& call, int i, uint64_t rank) {
  const Dims& shape = call[i].tensor.shape;
  if (!call.given(i) || shape.size() == rank) return {};
  return refused(call, call.name(i), " has shape ", to_string(shape), ", but must have rank ", rank,
                 rank == 3 ? ", [tokens, heads, head size]." : ", [block size, heads].");
}

Parameter nsa_layout() {
  Parameter layout{"layoutOptional", "layout", Kind::kString, Role::kAttribute, true, "\"TND\"", true, "",
                   "'TND' or null."};
  layout.taken = {kNsaLayout};
  return layout;
}

Status check_nsa_layout(const Call& call, const NsaParameters& p) {
  if (call.given(p.layout) && call[p.layout].text != kNsaLayout) {
    return call.fail(Code::kParamInvalid, call.name(p.layout), " is '", call[p.layout].text, "', but must be '",
                     kNsaLayout, "'.");
  }
  const Dims& weight = call[p.weight].tensor.shape;
  const Dims expected{call[p.block_size].integer, call[p.input].tensor.shape[1]};
  if (weight == expected) return {};
  return call.fail(Code::kParamInvalid, call.name(p.weight), " has shape ", to_string(weight), ", but must be ",
                   to_string(expected), ": ", call.name(p.block_size), " and the heads of ", call.name(p.input), ".");
}

Status check_nsa_shape(const Call& call, const NsaParameters& p, NsaShape* shape) {
  DESCEND_RETURN_IF_ERROR(read_sizes(call, p, shape));
  if (!call.on_host()) DESCEND_RETURN_IF_ERROR(check_atlas(call, p, *shape));
  DESCEND_RETURN_IF_ERROR(read_sequences(call, p, shape));
  const Dims& compressed = call[p.compressed].tensor.shape;
  const Dims expected{shape->blocks, shape->heads, shape->depth};
  if (compressed == expected) return {};
  return refused(call, call.name(p.compressed), " has shape ", to_string(compressed), ", but must be ",
                 to_string(expected), ": the windows of all sequences, then the heads and head size of ",
                 call.name(p.input), ".");
}

Status check_nsa_empty(const Call& call) {
  if (call.on_host()) return {};
  for (size_t i = 0; i < call.op->parameters.size(); ++i) {
    const Tensor* tensor = call.tensor(static_cast<int>(i));
    if (call.op->parameters[i].kind != Kind::kTensor || tensor == nullptr || !tensor->empty()) continue;
    return refused(call, call.name(static_cast<int>(i)), " has shape ", to_string(tensor->shape),
                   ", but must not be empty on ", info(call.product).name, ".");
  }
  return {};
}

int64_t nsa_blocks(const Call& call, const NsaParameters& p) {
  NsaShape shape;
  if (call[p.input].tensor.rank() != 3 || !read_sizes(call, p, &shape).ok()) return 0;
  return read_sequences(call, p, &shape).ok() ? shape.blocks : 0;
}

}  // namespace descend
