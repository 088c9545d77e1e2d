/* Programs that call aclnnInplaceAddRmsNorm include the header by this path. */
#ifndef DESCEND_ACLNNOP_ACLNN_INPLACE_ADD_RMS_NORM_H_
#define DESCEND_ACLNNOP_ACLNN_INPLACE_ADD_RMS_NORM_H_

#include "aclnn_add_rms_norm.h"

#endif /* DESCEND_ACLNNOP_ACLNN_INPLACE_ADD_RMS_NORM_H_ */
