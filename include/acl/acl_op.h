/* Operators by name do not exist here; programs include this header beside acl.h, and need nothing of it. C99. */
#ifndef DESCEND_ACL_ACL_OP_H_
#define DESCEND_ACL_ACL_OP_H_

#include "acl_base.h"

#endif /* DESCEND_ACL_ACL_OP_H_ */
