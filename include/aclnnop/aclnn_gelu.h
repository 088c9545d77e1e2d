/* Programs that call aclnnGelu include the header by this path. */
#ifndef DESCEND_ACLNNOP_ACLNN_GELU_H_
#define DESCEND_ACLNNOP_ACLNN_GELU_H_

#include "aclnn_gelu_v2.h"

#endif /* DESCEND_ACLNNOP_ACLNN_GELU_H_ */
