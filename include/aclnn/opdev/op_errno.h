/* The status codes of operators: programs include them by this path. */
#ifndef DESCEND_ACLNN_OPDEV_OP_ERRNO_H_
#define DESCEND_ACLNN_OPDEV_OP_ERRNO_H_

#include "../acl_meta.h"

#endif /* DESCEND_ACLNN_OPDEV_OP_ERRNO_H_ */
