#include "make_call.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "contract.h"
#include "shapes.h"
#include "table.h"

namespace fuzz {
namespace {

class Maker {
 public:
  explicit Maker(Bytes& bytes) : bytes_(bytes) {}

  Call make() {
    call_.op = static_cast<Op>(bytes_.below(kOps));
    call_.table = table_of(call_.op);
    choose_product();
    base_ = bytes_.pick({ACL_FLOAT, ACL_FLOAT16, ACL_BF16, host() ? ACL_DOUBLE : ACL_FLOAT16});
    call_.epsilon = bytes_.pick({0.25, 1e-5, 0.01, 1.0});
    call_.scale = bytes_.pick({1.0, 0.5, -2.0, 0.0});
    make_operator();
    lay_out_and_spoil();
    return std::move(call_);
  }

  Call make_of_table() {
    call_.op = Op::kOfTable;
    call_.table = other_operators()[bytes_.below(static_cast<int64_t>(other_operators().size()))];
    choose_product();
    make_parameters(*call_.table);
    lay_out_and_spoil();
    return std::move(call_);
  }

 private:
  Bytes& bytes_;
  Call call_;
  aclDataType base_ = ACL_FLOAT;

  bool host() const { return call_.product == Product::kHost; }
  int64_t inputs() const { return static_cast<int64_t>(call_.inputs); }

  int64_t dim() { return bytes_.pick<int64_t>({2, 1, 3, 4, 5, 8, 1, 2, host() ? 0 : 6, 17}); }
  Shape dims(int64_t least, int64_t most) {
    Shape shape(least + bytes_.below(most - least + 1));
    int64_t product = 1;
    for (int64_t& dim_ : shape) {
      dim_ = dim();
      if (product * dim_ > 600) dim_ = 1;
      product *= std::max<int64_t>(dim_, 1);
    }
    return shape;
  }
  // Any floating dtype on host, else one of those that the operators' tables have beside the base's.
  aclDataType other() {
    const aclDataType any = bytes_.pick({base_, base_, ACL_FLOAT, ACL_FLOAT16, ACL_BF16, ACL_DOUBLE});
    return host() ? any : bytes_.one_in(8) ? any : base_;
  }
  void add(aclDataType dtype, Shape shape, int64_t null_one_in = 0) {
    TensorArgument tensor;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    if (null_one_in > 0 && bytes_.one_in(null_one_in)) tensor.handle = Handle::kNull;
    call_.tensors.push_back(std::move(tensor));
  }
  void outputs_follow() { call_.inputs = call_.tensors.size(); }

  // Most calls are for a product with the operator.
  void choose_product() {
    call_.product = bytes_.pick({Product::kHost, Product::kA2Training, Product::kHost, Product::kA2Training,
                                 static_cast<Product>(bytes_.below(kProducts))});
    if (!is_alone) call_.product = Product::kHost;
  }

  void lay_out_and_spoil() {
    call_.given = call_.tensors.size();
    for (TensorArgument& tensor : call_.tensors) lay_out(tensor, &tensor - call_.tensors.data() >= inputs());
    const int64_t wrongs = bytes_.pick<int64_t>({0, 0, 0, 1, 1, 2, 3});
    for (int64_t i = 0; i < wrongs; ++i) spoil();
    if (wrongs > 0) call_.certain = false;
    call_.copy_in_place();
  }

  // Dtypes of a row of the table, shapes of its texts, and the attributes' defaults or other numbers.
  void make_parameters(const descend::Operator& op) {
    Shapes shapes(bytes_, op);
    std::vector<const descend::DtypeRow*> rows;
    for (const descend::DtypeRow& row : op.dtypes) {
      if (row.products.has(product_of(call_.product))) rows.push_back(&row);
    }
    if (rows.empty()) rows.push_back(&op.dtypes[0]);
    const descend::DtypeRow& row = *rows[bytes_.below(static_cast<int64_t>(rows.size()))];
    call_.certain = op.validate_first == nullptr;
    if (const descend::Parameter* text = find_parameter(call_, descend::Kind::kString); text != nullptr) {
      if (!text->taken.empty()) call_.text = text->taken[bytes_.below(static_cast<int64_t>(text->taken.size()))];
      if (text->optional && bytes_.one_in(4)) call_.text = nullptr;
      shapes.set_text(call_.text);
    }
    for (const descend::Parameter& one : op.parameters) {
      switch (one.kind) {
        case descend::Kind::kTensor: {
          if (one.in_place_of >= 0) {  // C has no such tensor; only inputs stand before those that it is in place of
            call_.in_place.push_back(static_cast<size_t>(one.in_place_of));
            break;
          }
          if (one.role == descend::Role::kInput) call_.inputs = call_.tensors.size() + 1;
          if (one.role == descend::Role::kOutput && std::string_view(one.name).ends_with("Ref")) {
            call_.in_place.push_back(call_.tensors.size());
          }
          // Which may say that the product takes fewer, or that a shape is another one for some attribute.
          const std::string_view text = one.shape;
          call_.certain = call_.certain && text.find(info(product_of(call_.product)).name) == text.npos &&
                          text.find(" for ") == text.npos;
          const Shape shape = shapes.of(one.shape);  // by itself: compilers differ in which argument they compute first
          add(pick_dtype(dtypes_of(row.sets[call_.tensors.size()])), shape,
              is_optional(call_, one) || one.optional_if_unused ? 4 : 0);
          break;
        }
        case descend::Kind::kIntArray:
          call_.list.handle = Handle::kAlive;
          break;
        case descend::Kind::kBoolArray:
          call_.mask = {Handle::kAlive, {1, 1, 1}};
          break;
        case descend::Kind::kString:
          break;
        default:
          call_.attributes.push_back(make_attribute(one, shapes));
      }
    }
    call_.list.values = shapes.normalized();
    call_.certain = call_.certain && shapes.certain() && call_.mask.handle == Handle::kNull && call_.in_place.empty();
  }

  // One of the dtypes. Beside a first tensor in DOUBLE most others have it, too.
  aclDataType pick_dtype(const std::vector<int>& dtypes) {
    const int64_t choice = dtypes.size() > 1 ? bytes_.below(256) : 0;
    const bool is_double = !call_.tensors.empty() && call_.tensors[0].dtype == ACL_DOUBLE && choice < 224;
    if (is_double && std::count(dtypes.begin(), dtypes.end(), ACL_DOUBLE) > 0) return ACL_DOUBLE;
    return static_cast<aclDataType>(dtypes[static_cast<size_t>(choice) % dtypes.size()]);
  }

  Attribute make_attribute(const descend::Parameter& one, Shapes& shapes) {
    const std::string_view given = one.default_value != nullptr ? one.default_value : "1";
    const double usual = given == "True" ? 1 : given == "False" ? 0 : std::strtod(given.data(), nullptr);
    if (one.kind == descend::Kind::kBool) return {0, bytes_.below(2)};
    const bool is_real = one.kind == descend::Kind::kFloat, odd = bytes_.one_in(8);
    Attribute attribute{is_real ? usual : 0, is_real ? 0 : static_cast<int64_t>(usual)};
    if (is_real && !odd) attribute.real = bytes_.pick<double>({usual, usual, 1.0, 0.5, 2.0, 0.25});
    if (is_real && odd) attribute.real = bytes_.pick<double>({0.0, -1.0, NAN, HUGE_VAL, 1e300, -1e-300, 5e-39});
    if (!is_real && odd) attribute.integer = hostile();
    if (one.c_type != nullptr && std::string_view(one.c_type) == "float") {
      attribute.real = static_cast<float>(attribute.real);
    }
    call_.certain = call_.certain && !odd && (is_real || one.default_value != nullptr);
    if (is_real || odd) return attribute;
    if (const int64_t size = shapes.number(one.name); size >= 0) return {0, size};
    // A mode, a dimension, a class: few of the small numbers are refused.
    if (bytes_.below(2) != 0) attribute.integer = bytes_.pick<int64_t>({0, 1, 2, 3, -2}), call_.certain = false;
    return attribute;
  }

  void make_operator() {
    switch (call_.op) {
      case Op::kOfTable:
        return;
      case Op::kRmsNorm:
      case Op::kRmsNormGrad:
      case Op::kLayerNorm:
      case Op::kLayerNormBackward:
        return make_row_norm();
      case Op::kGroupNormSwish:
      case Op::kGroupNormSwishGrad:
        return make_group_norm();
      case Op::kNsaCompress:
      case Op::kNsaCompressGrad:
        return make_nsa();
      case Op::kSoftmax:
      case Op::kSoftmaxBackward:
        return make_softmax();
    }
  }

  void make_row_norm() {
    const Shape x = dims(1, 4);
    const size_t split = bytes_.below(static_cast<int64_t>(x.size()));
    Shape rows(x.begin(), x.begin() + split);
    const Shape row(x.begin() + split, x.end());
    if (bytes_.below(2) != 0) rows.resize(x.size(), 1);
    const aclDataType statistic = host() ? other() : ACL_FLOAT;
    const aclDataType weight = host() ? other() : bytes_.pick({base_, ACL_FLOAT});
    switch (call_.op) {
      case Op::kRmsNorm:
        add(base_, x), add(weight, row), outputs_follow();
        return add(base_, x), add(statistic, rows);
      case Op::kRmsNormGrad:
        add(base_, x), add(base_, x), add(statistic, rows), add(weight, row), outputs_follow();
        return add(base_, x), add(statistic, row);
      case Op::kLayerNorm:
        call_.list = {Handle::kAlive, row};
        add(base_, x), add(weight, row, 4), add(weight, row, 4), outputs_follow();
        return add(base_, x), add(other(), rows, 4), add(other(), rows, 4);
      default:
        call_.list = {Handle::kAlive, row};
        call_.mask = {Handle::kAlive, {bytes_.below(4) != 1, bytes_.below(4) != 1, bytes_.below(4) != 1}};
        add(base_, x), add(base_, x), add(other(), rows), add(other(), rows), add(weight, row, 4), add(other(), row, 4);
        outputs_follow();
        return add(other(), x), add(other(), row, 8), add(other(), row, 8);
    }
  }

  void make_group_norm() {
    Shape x = dims(2, 4);
    call_.groups = bytes_.pick<int64_t>({1, 2, 3, std::max<int64_t>(x[1], 1)});
    x[1] = (x[1] + call_.groups - 1) / call_.groups * call_.groups;
    const Shape statistics{x[0], call_.groups}, channels{x[1]};
    call_.text = bytes_.pick<const char*>({nullptr, "NCHW", "anything"});
    for (bool& flag : call_.flags) flag = bytes_.below(4) != 1;
    const aclDataType parameter = host() ? other() : base_, statistic = host() ? other() : parameter;
    if (call_.op == Op::kGroupNormSwish) {
      add(base_, x), add(parameter, channels), add(parameter, channels), outputs_follow();
      return add(base_, x), add(statistic, statistics), add(statistic, statistics);
    }
    add(base_, x), add(statistic, statistics), add(statistic, statistics), add(base_, x), add(parameter, channels);
    add(parameter, channels), outputs_follow();
    add(base_, x), add(parameter, channels), add(parameter, channels);
  }

  void make_nsa() {
    if (!host() && base_ == ACL_FLOAT) base_ = ACL_FLOAT16;
    const int64_t unit = host() ? 1 : 16, heads = 1 + bytes_.below(2), size = host() ? dim() : 16;
    call_.stride = unit * (1 + bytes_.below(2));
    call_.block = call_.stride + unit * (1 + bytes_.below(2));
    if (host()) call_.block = 1 + bytes_.below(5);
    call_.text = bytes_.pick<const char*>({"TND", nullptr});
    Shape lengths;
    int64_t tokens = 0;
    for (int64_t i = bytes_.below(4); i > 0; --i) {
      const int64_t length = bytes_.below(host() ? 10 : 80);
      tokens += length;
      lengths.push_back(length);
    }
    if (lengths.empty()) tokens = host() ? bytes_.below(20) : 64 + bytes_.below(64);
    call_.lengths_type = host() ? bytes_.below(2) : 0;
    if (call_.lengths_type == 0) {
      for (size_t i = 1; i < lengths.size(); ++i) lengths[i] += lengths[i - 1];
    }
    const bool listed = !lengths.empty() || bytes_.below(2) != 0;
    call_.list = {listed ? Handle::kAlive : Handle::kNull, lengths};
    if (call_.op == Op::kNsaCompress && !host() && lengths.empty()) call_.list = {Handle::kAlive, {tokens}};
    std::vector<int64_t> starts;
    (void)windows(call_, tokens, &starts);
    const Shape input{tokens, heads, size}, weight{call_.block, heads};
    const Shape windowed{static_cast<int64_t>(starts.size()), heads, size};
    if (call_.op == Op::kNsaCompress) {
      return add(base_, input), add(base_, weight), outputs_follow(), add(base_, windowed);
    }
    add(base_, windowed), add(base_, input), add(base_, weight), outputs_follow();
    add(base_, input), add(base_, weight);
  }

  void make_softmax() {
    const Shape shape = host() ? dims(1, 5) : dims(4, 4);
    call_.flags[0] = host() && shape.size() > 1 && bytes_.one_in(4);
    Shape mask = shape;
    for (size_t i = 0; i < mask.size() && (host() || i < 2); ++i) {
      if (bytes_.one_in(3)) mask[i] = 1;
    }
    if (host() && bytes_.one_in(4)) mask.erase(mask.begin());
    add(base_, shape);
    if (call_.op == Op::kSoftmaxBackward) add(base_, shape);
    add(ACL_BOOL, mask, host() ? 4 : 0), outputs_follow();
    add(base_, shape);
  }

  // Strides, offset and storage of a tensor: contiguous, or with gaps, permuted, reversed, repeated.
  void lay_out(TensorArgument& tensor, bool is_output) {
    tensor.strides.assign(tensor.shape.size(), 0);
    const bool permuted = bytes_.one_in(6), gaps = bytes_.one_in(6), reversed = bytes_.one_in(8);
    const bool repeated = !is_output && bytes_.one_in(8);
    int64_t stride = gaps ? 2 : 1, low = 0, high = 0;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      const size_t axis = permuted ? i : tensor.shape.size() - 1 - i;
      const int64_t steps = std::max<int64_t>(tensor.shape[axis], 1);
      tensor.strides[axis] = repeated && bytes_.below(2) != 0 ? 0 : reversed && bytes_.below(2) != 0 ? -stride : stride;
      (tensor.strides[axis] < 0 ? low : high) += (steps - 1) * tensor.strides[axis];
      stride *= steps;
      if (gaps) stride += bytes_.below(3);
    }
    tensor.offset = -low + (gaps ? bytes_.below(4) : 0);
    tensor.storage = {tensor.offset + high + 1 + (gaps ? bytes_.below(3) : 0)};
    if (!permuted && !gaps && !reversed && !repeated) tensor.storage = tensor.shape;
    tensor.format = bytes_.pick({ACL_FORMAT_ND, ACL_FORMAT_ND, ACL_FORMAT_NCHW, ACL_FORMAT_NCDHW, ACL_FORMAT_NCL});
  }

  // One thing wrong, or at least unusual.
  void spoil() {
    TensorArgument& tensor = call_.tensors[bytes_.below(static_cast<int64_t>(call_.tensors.size()))];
    switch (bytes_.below(22)) {
      case 0:
        tensor.handle = bytes_.pick({Handle::kNull, Handle::kDead});
        break;
      case 1:
        tensor.dtype = bytes_.pick<int>({ACL_DOUBLE, ACL_FLOAT, ACL_FLOAT16, ACL_BF16, ACL_INT64, ACL_BOOL, ACL_STRING,
                                         ACL_INT4, ACL_DT_UNDEFINED, ACL_COMPLEX64, 5, 1000, INT32_MIN, INT32_MAX});
        break;
      case 2:
        tensor.format = bytes_.pick<int>({ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_NC1HWC0, ACL_FORMAT_UNDEFINED,
                                          ACL_FORMAT_NHWC, ACL_FORMAT_HWCN, ACL_FORMAT_NC, 1000, INT32_MIN});
        break;
      case 3:
      case 4:
        if (!tensor.shape.empty()) tensor.shape[bytes_.below(static_cast<int64_t>(tensor.shape.size()))] = hostile();
        break;
      case 5:
        tensor.shape.insert(tensor.shape.begin(), bytes_.pick<size_t>({1, 2, 5, 9}), bytes_.pick<int64_t>({1, 1, 2}));
        tensor.strides.resize(tensor.shape.size(), bytes_.pick<int64_t>({1, 0, 7}));
        break;
      case 6:
        if (!tensor.shape.empty()) tensor.shape.pop_back(), tensor.strides.pop_back();
        break;
      case 7:
      case 8:
        if (!tensor.shape.empty()) tensor.strides[bytes_.below(static_cast<int64_t>(tensor.shape.size()))] = hostile();
        break;
      case 9:
        tensor.offset = hostile();
        break;
      case 10:
        tensor.storage = {hostile()};
        break;
      case 11:
        tensor.storage.insert(tensor.storage.begin(), bytes_.pick<size_t>({1, 8, 12}), bytes_.pick<int64_t>({1, 0, 2}));
        break;
      case 12:
        call_.epsilon = bytes_.pick<double>({-1.0, -1e-300, 0.0, NAN, HUGE_VAL, 1e300});
        break;
      case 13:
        call_.scale = bytes_.pick<double>({NAN, HUGE_VAL, 1e300, 1e-300, -0.0, 5e-39});
        break;
      case 14:
        call_.groups = hostile();
        break;
      case 15:
        call_.block = hostile();
        break;
      case 16:
        call_.stride = hostile();
        break;
      case 17:
        call_.lengths_type = hostile();
        break;
      case 18:
        call_.list.handle = bytes_.pick({Handle::kDead, Handle::kNull, Handle::kAlive});
        if (bytes_.below(2) != 0) call_.list.values.push_back(hostile());
        break;
      case 19:
        call_.mask.handle = bytes_.pick({Handle::kAlive, Handle::kNull, Handle::kDead});
        call_.mask.values.assign(bytes_.pick<size_t>({0, 1, 2, 3, 4, 9}), bytes_.below(2));
        break;
      case 20:
        call_.text = bytes_.pick<const char*>({"", "TN", "TNDX", "BSH", nullptr});
        call_.flags[0] = !call_.flags[0];
        break;
      default:
        (bytes_.below(2) != 0 ? call_.no_size : call_.no_executor) = true;
    }
  }

  int64_t hostile() { return bytes_.hostile(); }
};

}  // namespace

Call make_call(Bytes& bytes) { return Maker(bytes).make(); }
Call make_call_of_table(Bytes& bytes) { return Maker(bytes).make_of_table(); }

}  // namespace fuzz
