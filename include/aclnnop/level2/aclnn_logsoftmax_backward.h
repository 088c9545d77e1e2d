/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_LOGSOFTMAX_BACKWARD_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_LOGSOFTMAX_BACKWARD_H_

#include "../aclnn_logsoftmax_backward.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_LOGSOFTMAX_BACKWARD_H_ */
