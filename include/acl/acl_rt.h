/* Initialization and the runtime: devices, memory, streams, events. Signatures as in CANN, usable from C99. */
#ifndef DESCEND_ACL_ACL_RT_H_
#define DESCEND_ACL_ACL_RT_H_

#include "acl_base.h"
#include "acl_rt_device.h"
#include "acl_rt_memory.h"
#include "acl_rt_stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface. aclrtGetVersion returns the same. */
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

/* configPath is not read. The acl and aclrt functions need aclInit first, except these:
 * - functions that report failures, versions (aclsysGet..., aclrtGetVersion) or the product (aclrtGetSocName);
 * - aclrtGetDeviceCount, aclrtSetDevice and aclrtGetDevice;
 * - functions that create, read or destroy tensors, scalars, arrays, lists, data buffers, tensor descriptions and
 *   attributes.
 * The first phase of an operator does not need aclInit, its second phase does. */
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);
/* Waits for the work in flight, then frees the memory and destroys the objects that are left. Data buffers and tensor
 * descriptions stay, because threads of torch_npu may destroy theirs later. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

/* The code of the latest failure in this thread, of any function. 0 if nothing has failed. Get sets it back to 0, Peek
 * does not. */
ACL_FUNC_VISIBILITY aclError aclrtGetLastError(aclrtLastErrLevel level);
ACL_FUNC_VISIBILITY aclError aclrtPeekAtLastError(aclrtLastErrLevel level);

ACL_FUNC_VISIBILITY aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion);

/* The machine has one device, or the number in the environment variable DESCEND_DEVICES. The process sees those that
 * ASCEND_RT_VISIBLE_DEVICES lists (all by default), numbered from 0. All devices are this machine's CPU, but each has
 * its own contexts, streams and default stream.
 *
 * A thread's device is the device of its current context. In a thread that has set neither a device nor a context,
 * aclrtGetDevice returns ACL_ERROR_RT_CONTEXT_NULL, and other functions work on device 0.
 *
 * Resetting a device waits for its work. aclrtResetDevice undoes one aclrtSetDevice. When it has undone the last one,
 * it destroys the default context and the streams created in it. aclrtResetDeviceForce undoes all of them at once. If
 * there is none to undo, both return ACL_ERROR_RT_CONTEXT_RELEASE_ERROR. */
ACL_FUNC_VISIBILITY aclError aclrtSetDevice(int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtResetDevice(int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtResetDeviceForce(int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtGetDevice(int32_t* deviceId);
ACL_FUNC_VISIBILITY aclError aclrtGetDeviceCount(uint32_t* count);
ACL_FUNC_VISIBILITY aclError aclrtGetRunMode(aclrtRunMode* runMode);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeDevice(void);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout);

/* A context belongs to a device. A thread's current context is the last one that it created or set, or the default
 * context of the device that it set last. If the current context is destroyed, the thread goes back to the default
 * context of its device, if there is one. */
ACL_FUNC_VISIBILITY aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId);
ACL_FUNC_VISIBILITY aclError aclrtDestroyContext(aclrtContext context);
ACL_FUNC_VISIBILITY aclError aclrtSetCurrentContext(aclrtContext context);
ACL_FUNC_VISIBILITY aclError aclrtGetCurrentContext(aclrtContext* context);

/* Options of the current context and of the process. They are stored and returned. Results are always deterministic,
 * bit for bit, whatever the options are. */
ACL_FUNC_VISIBILITY aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value);
ACL_FUNC_VISIBILITY aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value);
ACL_FUNC_VISIBILITY aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value);
ACL_FUNC_VISIBILITY aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value);

/* Work on one stream runs in order. Different streams run concurrently. A null stream is the device's default stream.
 * aclrtDestroyStream waits for the stream's work. aclrtDestroyStreamForce drops the work that has not begun. When a
 * step fails, the stream's next synchronize returns the failure, once. Timeouts are in milliseconds; -1 means none. */
ACL_FUNC_VISIBILITY aclError aclrtCreateStream(aclrtStream* stream);
ACL_FUNC_VISIBILITY aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag);
ACL_FUNC_VISIBILITY aclError aclrtDestroyStream(aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtDestroyStreamForce(aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeStream(aclrtStream stream);
ACL_FUNC_VISIBILITY aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
ACL_FUNC_VISIBILITY aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status);
ACL_FUNC_VISIBILITY aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);

/* An event marks a point in a stream. An event that was never recorded, or not since its last reset, is NOT_READY. A
 * wait for such an event returns at once. */
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
/* The time of the event in microseconds since the machine's start. */
ACL_FUNC_VISIBILITY aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_RT_H_ */
