/* Programs that call aclnnLogSoftmaxBackward include the header by this path. */
#ifndef DESCEND_ACLNNOP_ACLNN_LOGSOFTMAX_BACKWARD_H_
#define DESCEND_ACLNNOP_ACLNN_LOGSOFTMAX_BACKWARD_H_

#include "aclnn_log_softmax_backward.h"

#endif /* DESCEND_ACLNNOP_ACLNN_LOGSOFTMAX_BACKWARD_H_ */
