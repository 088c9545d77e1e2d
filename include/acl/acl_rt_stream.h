/* Streams beyond acl_rt.h, which includes this: attributes, callbacks, numbers in memory, graph capture. Usable from
 * C99. */
#ifndef DESCEND_ACL_ACL_RT_STREAM_H_
#define DESCEND_ACL_ACL_RT_STREAM_H_

#include "acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ACL_STREAM_HUGE 0x00000008U

/* A stream's number in the process, and what it was created with; a null stream is the default one, here and below. */
ACL_FUNC_VISIBILITY aclError aclrtStreamGetId(aclrtStream stream, int32_t* streamId);
ACL_FUNC_VISIBILITY aclError aclrtStreamGetPriority(aclrtStream stream, uint32_t* priority);
ACL_FUNC_VISIBILITY aclError aclrtStreamGetFlags(aclrtStream stream, uint32_t* flags);

/* What becomes of a stream's work after a step that failed: it goes on, as it does where nobody has said so, or is
 * dropped until a synchronise has told the failure. */
#define ACL_CONTINUE_ON_FAILURE 0x00000000U
#define ACL_STOP_ON_FAILURE 0x00000001U
ACL_FUNC_VISIBILITY aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode);

/* Kept and told: nothing saturates, and results show what has overflowed. */
ACL_FUNC_VISIBILITY aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag);
ACL_FUNC_VISIBILITY aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag);

typedef enum ACL_ANY_UNSIGNED {
  ACL_STREAM_ATTR_FAILURE_MODE = 1,
  ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK = 2,
  ACL_STREAM_ATTR_USER_CUSTOM_TAG = 3,
  ACL_STREAM_ATTR_CACHE_OP_INFO = 4, /* for the capture of graphs: ACL_ERROR_RT_PARAM_INVALID */
  ACL_STREAM_ATTR_PRIORITY = 5       /* kept and told */
} aclrtStreamAttr;

typedef union {
  uint64_t failureMode;
  uint32_t overflowSwitch;
  uint32_t userCustomTag;
  uint32_t cacheOpInfoSwitch;
  uint32_t streamPriority;
  uint32_t reserve[4];
} aclrtStreamAttrValue;

ACL_FUNC_VISIBILITY aclError aclrtSetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType,
                                                     aclrtStreamAttrValue* value);
ACL_FUNC_VISIBILITY aclError aclrtGetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType,
                                                     aclrtStreamAttrValue* value);

/* Whether every wait of a stream for this event is over. */
typedef enum aclrtEventWaitStatus ACL_ANY_UNSIGNED {
  ACL_EVENT_WAIT_STATUS_COMPLETE = 0,
  ACL_EVENT_WAIT_STATUS_NOT_READY = 1,
  ACL_EVENT_WAIT_STATUS_RESERVED = 0xFFFF
} aclrtEventWaitStatus;
ACL_FUNC_VISIBILITY aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status);

/* Events of several processes, on Linux. One is created by aclrtCreateEventExWithFlag with ACL_EVENT_IPC alone, and
 * opened by others, of the same user, with its handle, while the process that gave the handle has it. Any of them
 * records it, waits and asks whether it is complete; times and resets are ACL_ERROR_FEATURE_UNSUPPORTED. */
#define ACL_EVENT_IPC 0x00000040U
#define ACL_IPC_EVENT_HANDLE_SIZE 64U
typedef struct aclrtIpcEventHandle {
  char reserved[ACL_IPC_EVENT_HANDLE_SIZE];
} aclrtIpcEventHandle;
ACL_FUNC_VISIBILITY aclError aclrtIpcGetEventHandle(aclrtEvent event, aclrtIpcEventHandle* handle);
ACL_FUNC_VISIBILITY aclError aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, aclrtEvent* event);

/* Functions of the program, called in the order of the stream. A host function runs on the stream's own thread, or on
 * one that waits for the stream, never in aclrtLaunchHostFunc. A callback runs in aclrtProcessReport on the thread that
 * is subscribed for the stream (its pthread_t; streams of one device may share it), and with ACL_CALLBACK_BLOCK what
 * follows in the stream waits for it. An exception that one throws ends there: it is a failure of the stream, told by
 * its next synchronise, for a host function and for a callback that blocks, and of aclrtProcessReport for any callback.
 * What is not called back when a thread is unsubscribed, or the library ends, is a failure of the stream, too. A forked
 * child has no subscriptions. */
typedef void (*aclrtCallback)(void* userData);
typedef void (*aclrtHostFunc)(void* args);
typedef enum aclrtCallbackBlockType ACL_ANY_UNSIGNED {
  ACL_CALLBACK_NO_BLOCK = 0,
  ACL_CALLBACK_BLOCK = 1
} aclrtCallbackBlockType;
ACL_FUNC_VISIBILITY aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void* args);
ACL_FUNC_VISIBILITY aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType blockType,
                                                 aclrtStream stream);
/* Runs one callback, waiting for it as long as `timeout` says (ms, -1 for ever): ACL_ERROR_RT_REPORT_TIMEOUT where none
 * came, or ACL_ERROR_RT_THREAD_SUBSCRIBE where the thread is not subscribed all this time. */
ACL_FUNC_VISIBILITY aclError aclrtProcessReport(int32_t timeout);

/* A stream writes 64 bits to an address that is a multiple of 8, or waits there until the number is at least `value`
 * (as signed numbers have it, going round), equal to it, or has one of its bits, or until ~(number | value) is not 0.
 * `flag` of a write is 0. A wait ends whoever has written: it looks about every millisecond. */
#define ACL_STREAM_WAIT_VALUE_GEQ 0x00000000U
#define ACL_STREAM_WAIT_VALUE_EQ 0x00000001U
#define ACL_STREAM_WAIT_VALUE_AND 0x00000002U
#define ACL_STREAM_WAIT_VALUE_NOR 0x00000003U
ACL_FUNC_VISIBILITY aclError aclrtValueWrite(void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtValueWait(void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream);

typedef void* aclmdlRI;

typedef enum ACL_ANY_UNSIGNED {
  ACL_MODEL_RI_CAPTURE_MODE_GLOBAL = 0,
  ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL = 1,
  ACL_MODEL_RI_CAPTURE_MODE_RELAXED = 2
} aclmdlRICaptureMode;

typedef enum ACL_ANY_UNSIGNED {
  ACL_MODEL_RI_CAPTURE_STATUS_NONE = 0,
  ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE = 1,
  ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED = 2
} aclmdlRICaptureStatus;

/* A stream is never captured here: the status is NONE, and the model null. One of the two addresses may be null. */
ACL_FUNC_VISIBILITY aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status,
                                                    aclmdlRI* modelRI);
/* Gives the calling thread another mode, and the caller the one before. */
ACL_FUNC_VISIBILITY aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_RT_STREAM_H_ */
