/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_GROUPED_MATMUL_V4_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_GROUPED_MATMUL_V4_H_

#include "../aclnn_grouped_matmul_v4.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_GROUPED_MATMUL_V4_H_ */
