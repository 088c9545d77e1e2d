/* On which products would a call be accepted? C99. */
#ifndef DESCEND_DESCEND_PORTABILITY_H_
#define DESCEND_DESCEND_PORTABILITY_H_

#include <stdint.h>

#include "acl/acl_base.h"
#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What one product answers to a call. */
typedef struct {
  const char* product;  /* its name, as descendSetProduct takes it */
  aclnnStatus status;   /* of the first phase there; 0: accepted */
  const char* sentence; /* why not; empty where accepted. Lives until the thread asks again. */
} descendVerdict;

/* Asks every product about the last call of a first phase (aclnnXxxGetWorkspaceSize), or by name
 * (aclopCompileAndExecute), that this thread made, accepted or refused: the same shapes, dtypes, formats, strides and
 * attributes. Writes up to `capacity` verdicts, in the order of the products' table, and their number to `count`;
 * verdicts may be null where capacity is 0, to learn the number.
 *
 * A call by name whose tensors or attributes are not those of its type has the same answer on all.
 *
 * ACL_ERROR_INVALID_PARAM where count is null, or verdicts with a capacity; ACL_ERROR_FAILURE where this thread has not
 * made such a call yet. */
ACL_FUNC_VISIBILITY aclError descendPortability(descendVerdict* verdicts, uint64_t capacity, uint64_t* count);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_PORTABILITY_H_ */
