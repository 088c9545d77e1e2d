/* Calls of operators by name, and compile options. Operators are not compiled here: the options are stored and
 * returned, and change nothing. C99. */
#ifndef DESCEND_ACL_ACL_OP_COMPILER_H_
#define DESCEND_ACL_ACL_OP_COMPILER_H_

#include "acl_base.h"
#include "acl_op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ACL_ANY_UNSIGNED {
  ACL_PRECISION_MODE = 0,
  ACL_AICORE_NUM = 1,
  ACL_AUTO_TUNE_MODE = 2,
  ACL_OP_SELECT_IMPL_MODE = 3,
  ACL_OPTYPELIST_FOR_IMPLMODE = 4,
  ACL_OP_DEBUG_LEVEL = 5,
  ACL_DEBUG_DIR = 6,
  ACL_OP_COMPILER_CACHE_MODE = 7,
  ACL_OP_COMPILER_CACHE_DIR = 8,
  ACL_OP_PERFORMANCE_MODE = 9,
  ACL_OP_JIT_COMPILE = 10,
  ACL_OP_DETERMINISTIC = 11,
  ACL_CUSTOMIZE_DTYPES = 12,
  ACL_OP_PRECISION_MODE = 13,
  ACL_ALLOW_HF32 = 14,
  ACL_PRECISION_MODE_V2 = 15,
  ACL_OP_DEBUG_OPTION = 16
} aclCompileOpt;

/* ACL_OP_JIT_COMPILE must be "enable" or "disable". Until it is set, it is "disable". */
ACL_FUNC_VISIBILITY aclError aclSetCompileopt(aclCompileOpt opt, const char* value);
/* The size of the value in bytes, with its final 0. The size is 0 if the option has not been set. */
ACL_FUNC_VISIBILITY size_t aclGetCompileoptSize(aclCompileOpt opt);
/* `length` is the size of the buffer at `value`. */
ACL_FUNC_VISIBILITY aclError aclGetCompileopt(aclCompileOpt opt, char* value, size_t length);

typedef enum aclCompileType ACL_ANY_UNSIGNED { ACL_COMPILE_SYS = 0, ACL_COMPILE_UNREGISTERED = 1 } aclopCompileType;

/* Runs an operator on a stream, by the name of its type in CANN. It has the contract and the arithmetic of its aclnn
 * function. docs/coming-from-cann.md lists the types. Any other type is ACL_ERROR_OP_NOT_FOUND. If the contract refuses
 * the call, its status is returned.
 *
 * To leave out an optional input, give it the dtype ACL_DT_UNDEFINED, or leave it off at the end of the list.
 *
 * Descriptions, buffers and attributes may be destroyed as soon as the call has returned. The memory of the tensors
 * must live until the stream is synchronized. The exception are inputs set by aclSetTensorConst or placed in host
 * memory: the call copies them. */
ACL_FUNC_VISIBILITY aclError aclopCompileAndExecute(
    const char* opType, int numInputs, const aclTensorDesc* const inputDesc[], const aclDataBuffer* const inputs[],
    int numOutputs, const aclTensorDesc* const outputDesc[], aclDataBuffer* const outputs[], const aclopAttr* attr,
    aclopEngineType engineType, aclopCompileType compileFlag, const char* opPath, aclrtStream stream);

/* The same, but an output may have an unknown shape: a dimension of -1. The output then gets the shape that follows
 * from the inputs, and the call writes that shape into the description. */
ACL_FUNC_VISIBILITY aclError aclopCompileAndExecuteV2(const char* opType, int numInputs, aclTensorDesc* inputDesc[],
                                                      aclDataBuffer* inputs[], int numOutputs,
                                                      aclTensorDesc* outputDesc[], aclDataBuffer* outputs[],
                                                      aclopAttr* attr, aclopEngineType engineType,
                                                      aclopCompileType compileFlag, const char* opPath,
                                                      aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_OP_COMPILER_H_ */
