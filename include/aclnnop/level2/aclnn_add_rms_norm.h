/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_ADD_RMS_NORM_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_ADD_RMS_NORM_H_

#include "../aclnn_add_rms_norm.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_ADD_RMS_NORM_H_ */
