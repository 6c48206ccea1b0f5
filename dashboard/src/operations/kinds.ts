// Words for deferred operations.

export const STATUSES = ['pending', 'processing', 'failed', 'completed', 'cancelled'] as const

export function kindLabel(type: string): string {
  switch (type) {
    case 'PUSH':
      return 'push'
    case 'ACK_BATCH':
    case 'ACK_SINGLE':
      return 'acknowledgement'
    default:
      return type.toLowerCase()
  }
}

export function canRetry(status: string): boolean {
  return status === 'failed'
}

export function canCancel(status: string): boolean {
  return status === 'pending' || status === 'failed'
}

/** A failed one is given up, one that waits is taken back: its messages are not stored. */
export function cancelLabel(status: string): string {
  return status === 'failed' ? 'Give up' : 'Take back'
}
