/* On which products would a call be accepted? C99. */
#ifndef DESCEND_DESCEND_PORTABILITY_H_
#define DESCEND_DESCEND_PORTABILITY_H_

#include <stdint.h>

#include "acl/acl_base.h"
#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The answer of one product to a call. */
typedef struct {
  const char* product;  /* its name, as descendSetProduct takes it */
  aclnnStatus status;   /* the status of the first phase there; 0: accepted */
  const char* sentence; /* why the product refuses the call; empty if it accepts it */
} descendVerdict;

/* Checks this thread's last call against every product, with the same shapes, dtypes, formats, strides and attributes.
 * The call is a first phase (aclnnXxxGetWorkspaceSize) or a call by name (aclopCompileAndExecute). It does not matter
 * whether it was accepted.
 *
 * Writes the number of products to `count`, and up to `capacity` verdicts, in the order of the products' table. The
 * sentences are valid until this thread calls the function again. With a capacity of 0, `verdicts` may be null.
 *
 * If a call by name does not have the tensors or attributes of its type, all products give the same answer.
 *
 * Returns ACL_ERROR_INVALID_PARAM if count is null, or if verdicts is null and capacity is not 0. Returns
 * ACL_ERROR_FAILURE if this thread has made no such call yet. */
ACL_FUNC_VISIBILITY aclError descendPortability(descendVerdict* verdicts, uint64_t capacity, uint64_t* count);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_PORTABILITY_H_ */
