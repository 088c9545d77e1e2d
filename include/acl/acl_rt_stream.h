/* Streams beyond acl_rt.h, which includes this: graph capture. Usable from C99. */
#ifndef DESCEND_ACL_ACL_RT_STREAM_H_
#define DESCEND_ACL_ACL_RT_STREAM_H_

#include "acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void* aclmdlRI;

typedef enum ACL_ANY_UNSIGNED {
  ACL_MODEL_RI_CAPTURE_MODE_GLOBAL = 0,
  ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL = 1,
  ACL_MODEL_RI_CAPTURE_MODE_RELAXED = 2
} aclmdlRICaptureMode;

typedef enum ACL_ANY_UNSIGNED {
  ACL_MODEL_RI_CAPTURE_STATUS_NONE = 0,
  ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE = 1,
  ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED = 2
} aclmdlRICaptureStatus;

/* A stream is never captured here: the status is NONE, and the model null. One of the two addresses may be null. */
ACL_FUNC_VISIBILITY aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status,
                                                    aclmdlRI* modelRI);
/* Gives the calling thread another mode, and the caller the one before. */
ACL_FUNC_VISIBILITY aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_RT_STREAM_H_ */
