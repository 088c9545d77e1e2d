/* Functions of aclnn that another library computes: under torch_npu that is PyTorch. C99. */
#ifndef DESCEND_DESCEND_COMPOSER_H_
#define DESCEND_DESCEND_COMPOSER_H_

#include <stdint.h>

#include "acl/acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes a call, or checks it. `call` is an object in JSON, which ends with the function:
 *   function   such as "aclnnGroupedMatmulV4"
 *   phase      1: check the call; 2: compute it; 3: check it, wait for the thread's current stream, and compute it
 *   arguments  one for each parameter: null, a number, a boolean, a string, a list of integers, a tensor, or a list of
 *              tensors. A tensor has the name of its dtype ("BFLOAT16"), its shape, its strides in elements, in `data`
 *              the address of its first element, and "overlaps": true if elements may share memory. What cannot be
 *              read is {"wrong": REASON}.
 * At its end it passes its status, 0 or an error with a sentence, to say(answer, status, sentence). If it says nothing,
 * as where an exception ended it, the call is an error. It may be called by any thread. */
typedef void (*descendComposer)(const char* call, void* answer,
                                void (*say)(void* answer, int32_t status, const char* sentence));

/* Sets what computes these functions from now on. Null: nothing does, and each call of one is an error. It waits for
 * calls that other threads are in, except in a child that has called descendRefuseInChild: those threads are not there.
 * `holds_lock`, which may be null, returns 1 if the calling thread holds a lock that the composer takes: then the first
 * phase is phase 3, and the second has nothing to do. */
ACL_FUNC_VISIBILITY void descendSetComposer(descendComposer composer, int (*holds_lock)(void));

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_COMPOSER_H_ */
