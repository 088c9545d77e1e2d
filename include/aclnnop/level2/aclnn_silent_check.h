/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_SILENT_CHECK_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_SILENT_CHECK_H_

#include "../aclnn_silent_check.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_SILENT_CHECK_H_ */
