/* Programs that call aclnnLogSoftmax include the header by this path. */
#ifndef DESCEND_ACLNNOP_ACLNN_LOGSOFTMAX_H_
#define DESCEND_ACLNNOP_ACLNN_LOGSOFTMAX_H_

#include "aclnn_log_softmax.h"

#endif /* DESCEND_ACLNNOP_ACLNN_LOGSOFTMAX_H_ */
