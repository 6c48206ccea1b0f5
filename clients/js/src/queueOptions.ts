// Written by protocol/tests/options.rs from the table in protocol/src/options.rs.

/** Options of a queue; `null` returns one to its default. */
export interface QueueOptions {
  /**
   * How long a lease lasts if the pop does not set a time; 0 means 60 seconds. Default: 300 s.
   */
  leaseTime?: number | null;
  /**
   * How many times a failed message is delivered again before it becomes a dead letter. Default: 3.
   */
  retryLimit?: number | null;
  /**
   * Deliver a message only when it is this old. Default: 0 s.
   */
  delayedProcessing?: number | null;
  /**
   * Hold a partition back until it has a full batch or its oldest waiting message is this old. A pop
   * with `batch=1` always waits for the age. Default: 0 s.
   */
  windowBuffer?: number | null;
  /**
   * The order in which a pop by label tries queues, highest first. It can be negative. Default: 0.
   */
  priority?: number | null;
  /**
   * Keep dead letters. They are dropped only if `dlqAfterMaxRetries` is false as well. Default: true.
   */
  deadLetterQueue?: boolean | null;
  /**
   * Keep dead letters. They are dropped only if `deadLetterQueue` is false as well. Default: true.
   */
  dlqAfterMaxRetries?: boolean | null;
  /**
   * Enable `retentionSeconds` and `completedRetentionSeconds`. While this is false they have no effect,
   * and messages are kept forever unless `maxWaitTimeSeconds` removes them. Default: false.
   */
  retentionEnabled?: boolean | null;
  /**
   * Remove messages older than this, read or not; 0 keeps them. Default: 0 s.
   */
  retentionSeconds?: number | null;
  /**
   * Remove messages older than this once every group that reads the partition has passed them; 0 keeps
   * them. Default: 0 s.
   */
  completedRetentionSeconds?: number | null;
  /**
   * Remove messages that at least one group has not read by this age, also without `retentionEnabled`; 0
   * keeps them. Default: 0 s.
   */
  maxWaitTimeSeconds?: number | null;
  /**
   * How long a `transactionId` is remembered; 0 turns deduplication off. Default: 3600 s.
   */
  dedupWindowSeconds?: number | null;
  /**
   * Store payloads pushed from now on encrypted, if the broker has a key. Default: false.
   */
  encryptionEnabled?: boolean | null;
  /**
   * No effect: a failed message is available again at once. Default: 1000 ms.
   */
  retryDelay?: number | null;
  /**
   * No effect: the retention options remove old messages. Default: 3600 s.
   */
  ttl?: number | null;
  /**
   * No effect: queues have no size limit. Default: 0.
   */
  maxSize?: number | null;
  /**
   * No effect: a pop waits as long as it asks to. Numbers out of range become 0 or 60000. Default: 0 ms.
   */
  minPopWaitTime?: number | null;
}

/** @internal */
export const QUEUE_OPTIONS: readonly (keyof QueueOptions)[] = [
  'leaseTime',
  'retryLimit',
  'delayedProcessing',
  'windowBuffer',
  'priority',
  'deadLetterQueue',
  'dlqAfterMaxRetries',
  'retentionEnabled',
  'retentionSeconds',
  'completedRetentionSeconds',
  'maxWaitTimeSeconds',
  'dedupWindowSeconds',
  'encryptionEnabled',
  'retryDelay',
  'ttl',
  'maxSize',
  'minPopWaitTime',
];
