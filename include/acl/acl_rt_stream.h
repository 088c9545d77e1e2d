/* More functions on streams: attributes, callbacks, waits for numbers in memory, graph capture. Part of acl_rt.h,
 * usable from C99. */
#ifndef DESCEND_ACL_ACL_RT_STREAM_H_
#define DESCEND_ACL_ACL_RT_STREAM_H_

#include "acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ACL_STREAM_HUGE 0x00000008U

/* A stream's number in the process, its priority and its flags. Here and below, a null stream is the device's default
 * stream. */
ACL_FUNC_VISIBILITY aclError aclrtStreamGetId(aclrtStream stream, int32_t* streamId);
ACL_FUNC_VISIBILITY aclError aclrtStreamGetPriority(aclrtStream stream, uint32_t* priority);
ACL_FUNC_VISIBILITY aclError aclrtStreamGetFlags(aclrtStream stream, uint32_t* flags);

/* What happens to a stream's work after a step has failed. CONTINUE, the default: it runs. STOP: it is dropped, until a
 * synchronize has returned the failure. */
#define ACL_CONTINUE_ON_FAILURE 0x00000000U
#define ACL_STOP_ON_FAILURE 0x00000001U
ACL_FUNC_VISIBILITY aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode);

/* Stored and returned, without effect: a result that overflows is infinite or NaN, and is never saturated. */
ACL_FUNC_VISIBILITY aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag);
ACL_FUNC_VISIBILITY aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag);

typedef enum ACL_ANY_UNSIGNED {
  ACL_STREAM_ATTR_FAILURE_MODE = 1,
  ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK = 2,
  ACL_STREAM_ATTR_USER_CUSTOM_TAG = 3,
  ACL_STREAM_ATTR_CACHE_OP_INFO = 4, /* for graph capture: ACL_ERROR_RT_PARAM_INVALID */
  ACL_STREAM_ATTR_PRIORITY = 5       /* stored and returned, without effect */
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

/* COMPLETE if no stream has a wait for this event that has not ended. */
typedef enum aclrtEventWaitStatus ACL_ANY_UNSIGNED {
  ACL_EVENT_WAIT_STATUS_COMPLETE = 0,
  ACL_EVENT_WAIT_STATUS_NOT_READY = 1,
  ACL_EVENT_WAIT_STATUS_RESERVED = 0xFFFF
} aclrtEventWaitStatus;
ACL_FUNC_VISIBILITY aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status);

/* Events that processes share, on Linux. aclrtCreateEventExWithFlag creates one if the flag is ACL_EVENT_IPC alone.
 * Another process of the same user opens it by its handle, as long as the process that made the handle has the event.
 * Each of them can record the event, wait for it and query whether it is complete. Its time, its reset and its wait
 * status are ACL_ERROR_FEATURE_UNSUPPORTED. */
#define ACL_EVENT_IPC 0x00000040U
#define ACL_IPC_EVENT_HANDLE_SIZE 64U
typedef struct aclrtIpcEventHandle {
  char reserved[ACL_IPC_EVENT_HANDLE_SIZE];
} aclrtIpcEventHandle;
ACL_FUNC_VISIBILITY aclError aclrtIpcGetEventHandle(aclrtEvent event, aclrtIpcEventHandle* handle);
ACL_FUNC_VISIBILITY aclError aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, aclrtEvent* event);

/* Functions of the program that a stream calls, in the stream's order.
 *
 * A host function runs on the stream's own thread, or on a thread that waits for the stream. It never runs inside
 * aclrtLaunchHostFunc. A callback runs inside aclrtProcessReport, on the thread that is subscribed for the stream.
 * threadId is that thread's pthread_t. One thread may serve several streams of one device. With ACL_CALLBACK_BLOCK the
 * stream waits until the callback has returned.
 *
 * If a host function or a blocking callback throws an exception, that is a failure of the stream: its next synchronize
 * returns it. If any callback throws, aclrtProcessReport returns the failure.
 *
 * If the thread is unsubscribed, or the library is finalized, callbacks that have not run are dropped. That is a
 * failure of the stream, except for callbacks that do not block and that the stream had reached before. A forked child
 * has no subscriptions. */
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
/* Runs one callback of the calling thread. Waits for one for `timeout` milliseconds, or without limit for -1. If none
 * came, it returns ACL_ERROR_RT_REPORT_TIMEOUT, or ACL_ERROR_RT_THREAD_SUBSCRIBE if the thread is not subscribed when
 * the time is over. */
ACL_FUNC_VISIBILITY aclError aclrtProcessReport(int32_t timeout);

/* A stream writes a 64-bit number to devAddr, or waits until the number at devAddr fulfils a condition with `value`.
 * devAddr must be a multiple of 8. `flag` is 0 for a write, and the condition for a wait. Anyone may write the number,
 * also without this library: a waiting stream reads it at least once a millisecond. */
#define ACL_STREAM_WAIT_VALUE_GEQ 0x00000000U /* (int64_t)(number - value) >= 0 */
#define ACL_STREAM_WAIT_VALUE_EQ 0x00000001U  /* number == value */
#define ACL_STREAM_WAIT_VALUE_AND 0x00000002U /* (number & value) != 0 */
#define ACL_STREAM_WAIT_VALUE_NOR 0x00000003U /* ~(number | value) != 0 */
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

/* Streams are never captured: the status is always NONE, and the model null. One of the two addresses may be null. */
ACL_FUNC_VISIBILITY aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status,
                                                    aclmdlRI* modelRI);
/* Sets the capture mode of the calling thread to *mode, and *mode to the former one. */
ACL_FUNC_VISIBILITY aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_RT_STREAM_H_ */
