/** Types of the admin API, with the field names of the HTTP API. Times are ISO 8601 texts, durations are seconds. */

import type { QueueOptions } from './queueOptions.js';

export type { QueueOptions };

/** A preview of a seek. */
export interface SeekForecast {
  /** Partitions that would be moved. */
  readonly partitions: number;
  /** Messages that the group would read again. */
  readonly messagesReplayed: number;
  /** Unread messages that the group would skip. */
  readonly messagesSkipped: number;
}

export interface ConfiguredQueue {
  readonly queue: string;
  readonly queueId: string;
  readonly namespace: string;
  readonly task: string;
  /** All options in force. */
  readonly options: Readonly<Record<keyof QueueOptions, number | boolean>>;
}

export interface MessageCounts {
  readonly total: number;
  readonly pending: number;
  readonly processing: number;
  readonly completed: number;
  readonly failed: number;
  readonly deadLetter: number;
}

export interface QueueSummary {
  readonly id: string;
  readonly name: string;
  readonly namespace: string;
  readonly task: string;
  readonly createdAt: string;
  readonly partitions: number;
  readonly messages: Pick<MessageCounts, 'total' | 'pending' | 'processing'>;
  readonly segments: number;
  readonly retainedBytes: number;
}

export interface QueueDetail {
  readonly id: string;
  readonly name: string;
  readonly namespace: string;
  readonly task: string;
  readonly createdAt: string;
  readonly partitions: readonly {
    readonly id: string;
    readonly name: string;
    readonly createdAt: string;
    readonly stats: MessageCounts;
    readonly oldestMessage: string | null;
    readonly newestMessage: string | null;
  }[];
  readonly totals: MessageCounts;
  readonly partitionCount: number;
}

/** Totals of the queues with a label. */
interface Labelled {
  readonly queues: number;
  readonly partitions: number;
  readonly messages: Pick<MessageCounts, 'total' | 'pending'>;
}

export interface Namespace extends Labelled {
  readonly namespace: string;
}

export interface Task extends Labelled {
  readonly task: string;
}

export interface Depth {
  readonly queue: string;
  readonly group: string;
  /** The group's unread messages, including leased ones. */
  readonly pending: number;
  readonly partitionsPending: number;
  readonly partitions: readonly { readonly partition: string; readonly pending: number }[];
}

export interface BusyPartition {
  readonly queue: string;
  readonly partition: string;
  readonly id: string;
  readonly pending: number;
  readonly processing: number;
  readonly lagSeconds: number | null;
}

/** A consumer group in one queue. */
export interface GroupSummary {
  readonly name: string;
  readonly queueName: string;
  readonly members: number;
  readonly partitionsWithLag: number;
  readonly totalLag: number;
  readonly maxTimeLag: number;
  readonly state: 'Stable' | 'Lagging' | 'Dead';
  readonly subscriptionMode: string;
  readonly subscriptionTimestamp: string | null;
  readonly subscriptionCreatedAt: string | null;
}

/** A group's position in each queue. */
export type GroupDetail = Readonly<
  Record<
    string,
    {
      readonly partitions: readonly {
        readonly partition: string;
        readonly workerId: string | null;
        readonly lastConsumedAt: string | null;
        readonly totalConsumed: number;
        readonly offsetLag: number;
        readonly timeLagSeconds: number;
        readonly leaseActive: boolean;
      }[];
    }
  >
>;

export interface LaggingPartition {
  readonly consumerGroup: string;
  readonly queueName: string;
  readonly partitionName: string;
  readonly partitionId: string;
  readonly workerId: string | null;
  readonly offsetLag: number;
  readonly timeLagSeconds: number;
  readonly oldestUnconsumedAt: string | null;
  readonly lastConsumedAt: string | null;
}

export interface StoredMessage {
  readonly id: string;
  readonly transactionId: string;
  readonly partitionId: string;
  readonly queue: string;
  readonly partition: string;
  readonly namespace: string;
  readonly task: string;
  readonly status: string;
  readonly traceId: string | null;
  readonly producerSub: string | null;
  readonly createdAt: string;
  readonly leaseExpiresAt: string | null;
  readonly payload: unknown;
}

export interface StoredMessageDetail extends StoredMessage {
  readonly isEncrypted: boolean;
  readonly errorMessage: string | null;
  readonly retryCount: number;
  readonly consumerGroups: readonly {
    readonly name: string;
    readonly consumed: boolean;
    readonly leaseExpiresAt: string | null;
  }[];
}

export interface MessageLife {
  readonly push: {
    readonly id: string;
    readonly transactionId: string;
    readonly partitionId: string;
    readonly queue: string;
    readonly partition: string;
    readonly offset: number;
    readonly createdAt: string | null;
    readonly traceparent: string | null;
  };
  readonly groups: readonly {
    readonly consumerGroup: string;
    readonly delivered: boolean;
    readonly consumed: boolean;
    readonly leasedUntil: string | null;
    readonly attempts: number;
    readonly deadLetter: { readonly error: string | null; readonly failedAt: string } | null;
  }[];
  /** Only for traced messages. */
  readonly events: readonly {
    readonly at: string;
    readonly event: string;
    readonly consumerGroup: string | null;
    readonly attempt: number | null;
    readonly error: string | null;
  }[];
}

export type OperationState = 'pending' | 'processing' | 'completed' | 'failed' | 'cancelled';

export interface DeferredOperation {
  readonly id: string;
  /** `PUSH`, `ACK_BATCH` or `ACK_SINGLE`. */
  readonly operationType: string;
  readonly queueName: string;
  readonly partitionName: string;
  readonly status: OperationState;
  readonly createdAt: string | null;
  readonly processedAt: string | null;
  readonly retryCount: number;
  readonly errorMessage: string | null;
  readonly latencySeconds: number;
  readonly messages: number;
  /** The result of the direct call, once completed. */
  readonly result: unknown;
}

export interface OperationStats {
  readonly stats: readonly {
    readonly operationType: string;
    readonly status: OperationState;
    readonly count: number;
    readonly oldest: string;
    readonly newest: string;
    readonly avgLatencySeconds: number;
  }[];
  readonly systemHealth: {
    readonly poolUtilization: number;
    readonly poolWaiting: number;
    readonly queueDepth: number;
    readonly drainRate: number;
    readonly oldestAgeSeconds: number;
  };
}

export interface Spread {
  readonly avg: number;
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

export interface Overview {
  readonly queues: number;
  readonly partitions: number;
  readonly namespaces: number;
  readonly tasks: number;
  readonly messages: MessageCounts;
  readonly lag: { readonly time: Spread; readonly offset: Spread };
  readonly throughput: { readonly ingestedPerSecond: number; readonly processedPerSecond: number };
  readonly timestamp: string;
}

export interface Finding {
  readonly severity: string;
  readonly code: string;
  readonly message: string;
}

export interface DoctorReport {
  readonly healthy: boolean;
  readonly reachable: boolean;
  readonly findings: readonly Finding[];
}

export interface Maintenance {
  readonly maintenanceMode: boolean;
  readonly popMaintenanceMode: boolean;
  readonly bufferedMessages: number;
  readonly bufferHealthy: boolean;
}

export interface Health {
  readonly status: string;
  readonly database: string;
  readonly server: string;
  readonly version: string;
}
