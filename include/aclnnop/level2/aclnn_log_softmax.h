/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_LOG_SOFTMAX_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_LOG_SOFTMAX_H_

#include "../aclnn_log_softmax.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_LOG_SOFTMAX_H_ */
