/* The library's life and the runtime: device, memory, streams. Signatures as in CANN, usable from C99. */
#ifndef DESCEND_ACL_ACL_RT_H_
#define DESCEND_ACL_ACL_RT_H_

#include "acl_base.h"
#include "acl_rt_device.h"
#include "acl_rt_memory.h"
#include "acl_rt_stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface, which aclrtGetVersion tells, too. */
#define ACL_MAJOR_VERSION 1
#define ACL_MINOR_VERSION 13
#define ACL_PATCH_VERSION 0

typedef enum aclrtRunMode ACL_ANY_UNSIGNED { ACL_DEVICE = 0, ACL_HOST = 1 } aclrtRunMode;

typedef enum aclrtEventStatus ACL_ANY_UNSIGNED {
  ACL_EVENT_STATUS_COMPLETE = 0,
  ACL_EVENT_STATUS_NOT_READY = 1,
  ACL_EVENT_STATUS_RESERVED = 2
} aclrtEventStatus;

typedef enum aclrtEventRecordedStatus ACL_ANY_UNSIGNED {
  ACL_EVENT_RECORDED_STATUS_NOT_READY = 0,
  ACL_EVENT_RECORDED_STATUS_COMPLETE = 1
} aclrtEventRecordedStatus;

typedef enum aclrtStreamStatus ACL_ANY_UNSIGNED {
  ACL_STREAM_STATUS_COMPLETE = 0,
  ACL_STREAM_STATUS_NOT_READY = 1,
  ACL_STREAM_STATUS_RESERVED = 0xFFFF
} aclrtStreamStatus;

typedef enum aclrtLastErrLevel ACL_ANY_UNSIGNED { ACL_RT_THREAD_LEVEL = 0 } aclrtLastErrLevel;

#define ACL_EVENT_SYNC 0x00000001U
#define ACL_EVENT_CAPTURE_STREAM_PROGRESS 0x00000002U
#define ACL_EVENT_TIME_LINE 0x00000008U
#define ACL_EVENT_EXTERNAL 0x00000020U

#define ACL_STREAM_FAST_LAUNCH 0x00000001U
#define ACL_STREAM_FAST_SYNC 0x00000002U

/* configPath is not read. Every acl and aclrt function needs aclInit first, but for those that tell of failures, of
 * versions (aclsysGet..., aclrtGetVersion), of the product and of the devices (aclrtGetDeviceCount, aclrtSetDevice,
 * aclrtGetDevice), and those that create or destroy tensors, scalars, arrays, lists, buffers and descriptions; the
 * first phase of an operator does not. */
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);
/* Waits for the work in flight and frees all that is left. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

/* This thread's latest failure of any function as a number, 0 where nothing has failed; Get forgets it. */
ACL_FUNC_VISIBILITY aclError aclrtGetLastError(aclrtLastErrLevel level);
ACL_FUNC_VISIBILITY aclError aclrtPeekAtLastError(aclrtLastErrLevel level);

ACL_FUNC_VISIBILITY aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion);

/* There is one device, 0, or as many as the environment variable DESCEND_DEVICES says; of these the process sees those
 * that ASCEND_RT_VISIBLE_DEVICES lists, numbered from 0. All are this machine's CPU, but each has its own contexts,
 * streams and default stream. A thread's device is that of its current context. aclrtGetDevice answers
 * ACL_ERROR_RT_CONTEXT_NULL in a thread that has set neither; other functions work on device 0 there.
 * Resetting a device waits for its work. Where that answers the last aclrtSetDevice, or by force, it ends the default
 * context and the streams made in it; ACL_ERROR_RT_CONTEXT_RELEASE_ERROR where there is nothing to answer. */
ACL_FUNC_VISIBILITY aclError aclrtSetDevice(int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtResetDevice(int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtResetDeviceForce(int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtGetDevice(int32_t* deviceId);
ACL_FUNC_VISIBILITY aclError aclrtGetDeviceCount(uint32_t* count);
ACL_FUNC_VISIBILITY aclError aclrtGetRunMode(aclrtRunMode* runMode);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeDevice(void);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout);

/* A context belongs to a device, and each thread has a current one: the last that it created or set, or the default one
 * of the device that it set. Once destroyed it is the default one again. */
ACL_FUNC_VISIBILITY aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtDestroyContext(aclrtContext context);
ACL_FUNC_VISIBILITY aclError aclrtSetCurrentContext(aclrtContext context);
ACL_FUNC_VISIBILITY aclError aclrtGetCurrentContext(aclrtContext* context);

/* Options. Results are always deterministic and the same bits, whatever they are set to. */
ACL_FUNC_VISIBILITY aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value);
ACL_FUNC_VISIBILITY aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value);
ACL_FUNC_VISIBILITY aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value);
ACL_FUNC_VISIBILITY aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value);

/* Streams: work on one runs in order, different ones run side by side; a null stream is the device's default stream.
 * Destroying a stream waits for its work; the Force form drops what has not begun. A failed step is reported by the
 * stream's next synchronise, once. Timeouts are in milliseconds, -1 for none. */
ACL_FUNC_VISIBILITY aclError aclrtCreateStream(aclrtStream* stream);
ACL_FUNC_VISIBILITY aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag);
ACL_FUNC_VISIBILITY aclError aclrtDestroyStream(aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtDestroyStreamForce(aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeStream(aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
ACL_FUNC_VISIBILITY aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status);
ACL_FUNC_VISIBILITY aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);

/* Events: points in a stream. One that is not recorded, never or since it was reset, is NOT_READY; a wait for it is no
 * wait. */
ACL_FUNC_VISIBILITY aclError aclrtCreateEvent(aclrtEvent* event);
ACL_FUNC_VISIBILITY aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag);
ACL_FUNC_VISIBILITY aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag);
ACL_FUNC_VISIBILITY aclError aclrtDestroyEvent(aclrtEvent event);
ACL_FUNC_VISIBILITY aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status);
ACL_FUNC_VISIBILITY aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status); /* the older name */
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeEvent(aclrtEvent event);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout);
ACL_FUNC_VISIBILITY aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent);
/* Microseconds from the machine's start to the event. */
ACL_FUNC_VISIBILITY aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_RT_H_ */
