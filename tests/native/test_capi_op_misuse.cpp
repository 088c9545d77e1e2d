// Operators by name: what is refused, with which code and which sentence.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "capi_op.h"
#include "capi_runtime.h"

namespace {

constexpr const char* kWho = "aclopCompileAndExecute";

// A valid call of RmsNorm.
struct RmsNorm : Runtime {
  RmsNorm() { x.normal(1), gamma.normal(2); }
  int operator()(const char* type = "RmsNorm") { return execute(type, in, out, attr); }
  bool untouched() const { return !(y.at(0) == y.at(0)) && !(rstd.at(0) == rstd.at(0)); }

  Array x{{4, 16}, ACL_FLOAT}, gamma{{16}, ACL_FLOAT}, y{{4, 16}, ACL_FLOAT}, rstd{{4, 1}, ACL_FLOAT};
  OpTensors in{{&x, &gamma}}, out{{&y, &rstd}};
  OpAttributes attr;
};

aclError call_with(const char* type, int inputs, const aclTensorDesc* const* in, const aclDataBuffer* const* in_data,
                   int outputs, const aclTensorDesc* const* out, aclDataBuffer* const* out_data,
                   const aclopAttr* attr = nullptr, unsigned engine = 0, unsigned compile = 0,
                   aclrtStream stream = nullptr) {
  return aclopCompileAndExecute(type, inputs, in, in_data, outputs, out, out_data, attr,
                                static_cast<aclopEngineType>(engine), static_cast<aclopCompileType>(compile), nullptr,
                                stream);
}

bool says(const std::string& words) { return sentence().find(words) != std::string::npos; }

}  // namespace

TEST_CASE("types that there are not") {
  RmsNorm call;
  for (const char* type : {"Transpose", "rmsNorm", "RmsNor", "RmsNorm ", "", "aclnnRmsNorm", "LayerNormXBackprop"}) {
    REFUSED(ACL_ERROR_OP_NOT_FOUND, kWho, call(type));
    CHECK(says(std::string("type \"").append(type).append("\" here")));
    CHECK(says("ScaledMaskedSoftmaxGrad"));
  }
  const std::string endless(100'000, 'x');
  REFUSED(ACL_ERROR_OP_NOT_FOUND, kWho, call(endless.c_str()));
  CHECK(sentence().size() < 1000);
  REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call(nullptr));
  CHECK(call.untouched());
}

TEST_CASE("counts and arrays that do not go together") {
  RmsNorm call;
  const auto* const* in = call.in.descs.data();
  const auto* const* in_data = call.in.buffers.data();
  auto* const* out = call.out.descs.data();
  auto* const* out_data = call.out.buffers.data();
  for (const int count : {0, 1, 3, 1000}) {
    REFUSED(ACL_ERROR_OP_INPUT_NOT_MATCH, kWho, call_with("RmsNorm", count, in, in_data, 2, out, out_data));
    CHECK(says("RmsNorm: has " + std::to_string(count) + " inputs, but must have 2."));
    REFUSED(ACL_ERROR_OP_OUTPUT_NOT_MATCH, kWho, call_with("RmsNorm", 2, in, in_data, count, out, out_data));
  }
  REFUSED(ACL_ERROR_OP_INPUT_NOT_MATCH, kWho, call_with("ScaledMaskedSoftmax", 3, in, in_data, 1, out, out_data));
  CHECK(says("1 to 2"));
  for (const int count : {-1, std::numeric_limits<int>::min()}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", count, in, in_data, 2, out, out_data));
    REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", 2, in, in_data, count, out, out_data));
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", 2, nullptr, in_data, 2, out, out_data));
  CHECK(says("inputDesc is null"));
  REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", 2, in, nullptr, 2, out, out_data));
  CHECK(says("inputs is null"));
  REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", 2, in, in_data, 2, nullptr, out_data));
  REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", 2, in, in_data, 2, out, nullptr));
  CHECK(says("outputs is null"));
  REFUSED(ACL_ERROR_INVALID_PARAM, kWho, call_with("RmsNorm", 2, in, in_data, 2, out, out_data, nullptr, 3));
  REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, kWho, call_with("RmsNorm", 2, in, in_data, 2, out, out_data, nullptr, 0, 1));
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, kWho, call_with("RmsNorm", 2, in, in_data, 2, out, out_data, nullptr, 0, 2));
  int local = 0;
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, kWho,
          call_with("RmsNorm", 2, in, in_data, 2, out, out_data, nullptr, 0, 0, &local));
  CHECK(call.untouched());
  CHECK(call_with("RmsNorm", 2, in, in_data, 2, out, out_data, nullptr, 2) == 0);
}

TEST_CASE("descriptions, buffers and attributes that are none, or no more") {
  RmsNorm call;
  int local = 0;
  const auto each = [&](auto& handle, int null, const std::string& name, auto destroy) {
    auto* const good = handle;
    handle = nullptr;
    REFUSED(null, kWho, call());
    CHECK(says(name + " is null"));
    handle = reinterpret_cast<std::remove_reference_t<decltype(handle)>>(&local);
    REFUSED(ACLNN_ERR_PARAM_INVALID, kWho, call());
    CHECK(says(name));
    handle = good;
    destroy(good);
    REFUSED(ACLNN_ERR_PARAM_INVALID, kWho, call());
    CHECK(says(name));
  };
  each(call.out.buffers[1], ACL_ERROR_INVALID_PARAM, "outputs[1]", aclDestroyDataBuffer);
  each(call.out.descs[0], ACL_ERROR_INVALID_PARAM, "outputDesc[0]", aclDestroyTensorDesc);
  each(call.in.buffers[1], ACL_ERROR_INVALID_PARAM, "inputs[1]", aclDestroyDataBuffer);
  each(call.in.descs[0], ACL_ERROR_INVALID_PARAM, "inputDesc[0]", aclDestroyTensorDesc);
  OpTensors in({&call.x, &call.gamma}), out({&call.y, &call.rstd});
  aclopAttr* const gone = aclopCreateAttr();
  aclopDestroyAttr(gone);
  for (aclopAttr* attr : {gone, reinterpret_cast<aclopAttr*>(&local)}) {
    REFUSED(ACLNN_ERR_PARAM_INVALID, kWho, execute("RmsNorm", in, out, attr));
    CHECK(says("attr"));
  }
  CHECK(call.untouched());
}

TEST_CASE("attributes of another name or kind") {
  RmsNorm call;
  call.attr.real("eps", 1);
  REFUSED(ACL_ERROR_OP_ATTR_NOT_MATCH, kWho, call());
  CHECK(says("RmsNorm: has no attribute \"eps\"."));
  OpTensors in({&call.x, &call.gamma}), out({&call.y, &call.rstd});
  const auto with = [&](auto set) {
    OpAttributes attr;
    set(attr);
    REFUSED(ACL_ERROR_OP_ATTR_NOT_MATCH, kWho, execute("RmsNorm", in, out, attr));
    CHECK(says("epsilon is "));
    CHECK(says("but must be a float"));
  };
  const int64_t number = 1;
  const int64_t* list = &number;
  const float real = 1;
  const char* text = "1";
  const aclDataType type = ACL_FLOAT;
  const uint8_t flag = 1;
  const int one = 1;
  with([&](OpAttributes& attr) { attr.integer("epsilon", 0); });
  with([&](OpAttributes& attr) { attr.flag("epsilon", true); });
  with([&](OpAttributes& attr) { attr.text("epsilon", "1e-6"); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrDataType(attr, "epsilon", ACL_FLOAT) == 0); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrListInt(attr, "epsilon", 1, &number) == 0); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrListFloat(attr, "epsilon", 1, &real) == 0); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrListBool(attr, "epsilon", 1, &flag) == 0); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrListString(attr, "epsilon", 1, &text) == 0); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrListDataType(attr, "epsilon", 1, &type) == 0); });
  with([&](OpAttributes& attr) { CHECK(aclopSetAttrListListInt(attr, "epsilon", 1, &one, &list) == 0); });
  OpAttributes negative;
  negative.real("epsilon", -1);
  REFUSED(ACLNN_ERR_INNER_TILING_ERROR, kWho, execute("RmsNorm", in, out, negative));
  CHECK(call.untouched());
  negative.real("epsilon", 1);  // set again
  CHECK(execute("RmsNorm", in, out, negative) == 0);
}

TEST_CASE("sentences name the attributes of the type, not those of the function") {
  RmsNorm call;
  const int64_t axis = 7;
  const auto check = [&](const char* type, const char* name, const std::vector<Array*>& inputs) {
    OpAttributes attr;
    CHECK(aclopSetAttrListInt(attr, name, 1, &axis) == 0);
    OpTensors in(inputs), out({&call.y});
    REFUSED(ACLNN_ERR_PARAM_INVALID, kWho, execute(type, in, out, attr));
    CHECK(says(std::string(type) + ": " + name + " is 7, but must be from"));
  };
  check("SoftmaxV2", "axes", {&call.x});
  check("LogSoftmaxV2", "axes", {&call.x});
  check("SoftmaxGrad", "axes", {&call.x, &call.x});
  check("LogSoftmaxGrad", "axis", {&call.x, &call.x});
}

TEST_CASE("what the setters of attributes refuse") {
  const Runtime runtime;
  OpAttributes attr;
  int local = 0;
  auto* const foreign = reinterpret_cast<aclopAttr*>(&local);
  const int64_t number = 1;
  const int64_t* const lists[] = {&number, nullptr};
  const char* texts[] = {"a", nullptr};
  const int counts[] = {1, 1}, negative[] = {-1, 0};
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrInt", aclopSetAttrInt(nullptr, "a", 1));
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclopSetAttrInt", aclopSetAttrInt(foreign, "a", 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrInt", aclopSetAttrInt(attr, nullptr, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrBool", aclopSetAttrBool(attr, nullptr, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrFloat", aclopSetAttrFloat(nullptr, "a", 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrDataType", aclopSetAttrDataType(nullptr, "a", ACL_FLOAT));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrString", aclopSetAttrString(attr, "a", nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListInt", aclopSetAttrListInt(attr, "a", -1, &number));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListInt", aclopSetAttrListInt(attr, "a", 1, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListFloat", aclopSetAttrListFloat(attr, "a", 1, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListBool", aclopSetAttrListBool(attr, "a", 1, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListDataType", aclopSetAttrListDataType(attr, "a", -5, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListString", aclopSetAttrListString(attr, "a", 2, texts));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListListInt", aclopSetAttrListListInt(attr, "a", 1, nullptr, lists));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListListInt", aclopSetAttrListListInt(attr, "a", 1, counts, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListListInt", aclopSetAttrListListInt(attr, "a", 2, counts, lists));
  CHECK(sentence() == "aclopSetAttrListListInt: values[1] is null, but numValues[1] is 1.");
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclopSetAttrListListInt", aclopSetAttrListListInt(attr, "a", 1, negative, lists));
  CHECK(aclopSetAttrListInt(attr, "a", 0, nullptr) == 0);
  CHECK(aclopSetAttrListListInt(attr, "a", 0, nullptr, nullptr) == 0);
  aclopDestroyAttr(nullptr);
  aclopDestroyAttr(foreign);
}

TEST_CASE("what is set on descriptions, and what is not") {
  const Runtime runtime;
  const int64_t dims[] = {2, 3};
  aclTensorDesc* const desc = aclCreateTensorDesc(ACL_FLOAT, 2, dims, ACL_FORMAT_NCHW);
  CHECK(std::string(aclGetTensorDescName(desc)).empty());
  aclSetTensorDescName(desc, "x");
  CHECK(std::string(aclGetTensorDescName(desc)) == "x");
  aclSetTensorDescName(desc, nullptr);
  CHECK(sentence() == "aclSetTensorDescName: name is null, but must be given.");
  CHECK(std::string(aclGetTensorDescName(desc)) == "x");
  CHECK(std::string(aclGetTensorDescName(nullptr)).empty());
  const int64_t storage[] = {6};
  CHECK(aclSetTensorShape(desc, 1, storage) == 0);
  CHECK(aclSetTensorFormat(desc, ACL_FORMAT_FRACTAL_NZ) == 0);
  // The description's own shape and format are unchanged.
  CHECK(aclGetTensorDescNumDims(desc) == 2);
  CHECK(aclGetTensorDescFormat(desc) == ACL_FORMAT_NCHW);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetTensorShape", aclSetTensorShape(desc, -1, storage));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetTensorShape", aclSetTensorShape(desc, 1, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetTensorShape", aclSetTensorShape(nullptr, 1, storage));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetTensorFormat", aclSetTensorFormat(nullptr, ACL_FORMAT_ND));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetTensorPlaceMent", aclSetTensorPlaceMent(desc, static_cast<aclMemType>(3)));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclSetTensorConst", aclSetTensorConst(desc, nullptr, 1));
  aclDestroyTensorDesc(desc);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetTensorFormat", aclSetTensorFormat(desc, ACL_FORMAT_ND));
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetTensorConst", aclSetTensorConst(desc, nullptr, 0));
  CHECK(std::string(aclGetTensorDescName(desc)).empty());
}

TEST_CASE("descriptions that lie") {
  RmsNorm call;
  const auto with_x = [&](std::vector<int64_t> dims, aclDataType dtype, size_t bytes, const std::string& words,
                          auto change) {
    CAPTURE(words);
    OpTensors in({}), out({&call.y, &call.rstd});
    in.add({aclCreateTensorDesc(dtype, static_cast<int>(dims.size()), dims.data(), ACL_FORMAT_ND),
            aclCreateDataBuffer(call.x.data(), bytes)});
    in.add(described(&call.gamma));
    change(in.descs[0]);
    CHECK(execute("RmsNorm", in, out, nullptr) != 0);
    CHECK_MESSAGE(says(words), sentence());
    CHECK_MESSAGE(says("aclopCompileAndExecute: RmsNorm: "), sentence());
  };
  const auto nothing = [](aclTensorDesc*) {};
  const int64_t huge = int64_t{1} << 40, most = std::numeric_limits<int64_t>::max();
  with_x({huge, huge, 16}, ACL_FLOAT, 256, "x has shape", nothing);
  with_x({most, 16}, ACL_FLOAT, std::numeric_limits<size_t>::max(), "x has shape", nothing);
  with_x({-4, 16}, ACL_FLOAT, 256, "x has shape [-4, 16]", nothing);
  with_x({4, 16}, ACL_FLOAT, 255, "x ", nothing);
  with_x({4, 16}, ACL_FLOAT, 0, "x ", nothing);
  with_x({1, 1, 1, 1, 1, 1, 1, 4, 16}, ACL_FLOAT, 256, "rank 9", nothing);
  with_x({4, 16}, ACL_STRING, 256, "x has dtype STRING", nothing);
  with_x({4, 16}, static_cast<aclDataType>(77), 256, "x has dtype 77", nothing);
  with_x({4, 16}, ACL_FLOAT, 256, "x has format FRACTAL_NZ",
         [](aclTensorDesc* desc) { CHECK(aclSetTensorFormat(desc, ACL_FORMAT_FRACTAL_NZ) == 0); });
  with_x({4, 16}, ACL_FLOAT, 256, "is stored as [4, 1, 15]", [](aclTensorDesc* desc) {
    const int64_t storage[] = {4, 1, 15};
    CHECK(aclSetTensorShape(desc, 3, storage) == 0);
  });
  with_x({4, 16}, ACL_FLOAT, 256, "has \"gamma\" in the place of x",
         [](aclTensorDesc* desc) { aclSetTensorDescName(desc, "gamma"); });
  // Host memory is copied up to its end.
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{huge, huge}, {huge, 16}, {-4, 16}}) {
    with_x(dims, ACL_FLOAT, 256, "x ",
           [](aclTensorDesc* desc) { CHECK(aclSetTensorPlaceMent(desc, ACL_MEMTYPE_HOST) == 0); });
  }
  // Nor beyond the end of an allocation, whatever the buffer says.
  void* memory = nullptr;
  REQUIRE(aclrtMallocHost(&memory, 100) == 0);
  {
    OpTensors in({}), out({&call.y, &call.rstd});
    const int64_t dims[] = {4, 16};
    in.add({aclCreateTensorDesc(ACL_FLOAT, 2, dims, ACL_FORMAT_ND), aclCreateDataBuffer(memory, 256)});
    in.add(described(&call.gamma));
    CHECK(aclSetTensorPlaceMent(in.descs[0], ACL_MEMTYPE_HOST) == 0);
    REFUSED(ACLNN_ERR_PARAM_INVALID, kWho, execute("RmsNorm", in, out, nullptr));
    CHECK_MESSAGE(says("x "), sentence());
  }
  CHECK(aclrtFreeHost(memory) == 0);
  // Elements without memory.
  OpTensors in({&call.x}), out({&call.y, &call.rstd});
  const int64_t columns = 16;
  in.add({aclCreateTensorDesc(ACL_FLOAT, 1, &columns, ACL_FORMAT_ND), aclCreateDataBuffer(nullptr, 64)});
  REFUSED(ACLNN_ERR_RUNTIME_ERROR, kWho, execute("RmsNorm", in, out, nullptr));
  CHECK(says("gamma has elements, but its data pointer is null"));
  CHECK(call.untouched());
}

TEST_CASE("names and storages that are right") {
  RmsNorm call;
  aclSetTensorDescName(call.in.descs[0], "x");
  aclSetTensorDescName(call.in.descs[1], "gamma");
  aclSetTensorDescName(call.out.descs[1], "rstd");
  const int64_t storage[] = {64};
  CHECK(aclSetTensorShape(call.in.descs[0], 1, storage) == 0);
  CHECK(aclSetTensorFormat(call.in.descs[0], ACL_FORMAT_NCHW) == 0);
  CHECK_MESSAGE(call() == 0, sentence());
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  CHECK(call.y.finite());
}

TEST_CASE("operators by name before aclInit and after aclFinalize") {
  OpAttributes attr;  // descriptions need neither
  Array x({4, 16}, ACL_FLOAT), gamma({16}, ACL_FLOAT), y({4, 16}, ACL_FLOAT), rstd({4, 1}, ACL_FLOAT);
  CHECK(call_by_name("RmsNorm", {&x, &gamma}, {&y, &rstd}, attr) == ACL_ERROR_UNINITIALIZE);
  OpTensor kept;
  {
    const Runtime runtime;
    CHECK(call_by_name("RmsNorm", {&x, &gamma}, {&y, &rstd}) == 0);
    kept = described(&x);
  }
  aclDestroyTensorDesc(kept.desc);
  CHECK(aclDestroyDataBuffer(kept.buffer) == 0);  // the thread that made the call may learn of its end later
  CHECK(call_by_name("RmsNorm", {&x, &gamma}, {&y, &rstd}) == ACL_ERROR_UNINITIALIZE);
  CHECK(aclopSetAttrInt(attr, "a", 1) == ACLNN_ERR_PARAM_INVALID);  // aclFinalize has freed it
}
