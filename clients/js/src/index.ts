/// <reference lib="esnext.disposable" preserve="true" />
/** Client for Queen, a partitioned message queue on PostgreSQL. Times are milliseconds. */

export type { AckOptions, AckResult, AckStatus } from './ack.js';
export { Admin } from './admin.js';
export type * from './adminTypes.js';
export type { BatchHandler, EachHandler, ErrorContext, HandlerContext } from './batch.js';
export { PushBuffer } from './buffer.js';
export type { BufferOptions } from './buffer.js';
export { Consume, Consumer } from './consume.js';
export type { ConsumeOptions, ConsumeSummary } from './consume.js';
export { DeadLetters, Redrive } from './deadLetters.js';
export type { DeadLetter, DeadLetterFilter, RedriveOptions, RedriveProgress } from './deadLetters.js';
export { QueenError } from './errors.js';
export type { ErrorDetails, ErrorKind, Undelivered } from './errors.js';
export type { CallOptions } from './http.js';
export type { Logger } from './log.js';
export { Message } from './message.js';
export type { Parse } from './message.js';
export type { Operation } from './operations.js';
export type { MoreOptions, QueenOptions } from './options.js';
export type { PopOptions, Subscription, TakeOptions } from './pop.js';
export type { ItemOptions, PartitionOption, Payload, PerMessage, PushOptions, PushResult } from './push.js';
export { Queen } from './queen.js';
export type { HandleOptions } from './queen.js';
export { Discovery, Group, Partition, Queue } from './queue.js';
export { Receipt } from './receipt.js';
export { Traces } from './traces.js';
export type { MessageKey, NamedTrace, Page, Trace, TraceName, TraceOptions } from './traces.js';
export { Transaction } from './transaction.js';
export type { Committed } from './transaction.js';
