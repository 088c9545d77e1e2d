/* Programs that call aclnnGeluBackward include the header by this path. */
#ifndef DESCEND_ACLNNOP_ACLNN_GELU_BACKWARD_H_
#define DESCEND_ACLNNOP_ACLNN_GELU_BACKWARD_H_

#include "aclnn_gelu_backward_v2.h"

#endif /* DESCEND_ACLNNOP_ACLNN_GELU_BACKWARD_H_ */
