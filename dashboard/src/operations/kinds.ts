// Labels of deferred operations.

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

/** A failed operation is discarded, a pending one withdrawn: in both cases its messages are not stored. */
export function cancelLabel(status: string): string {
  return status === 'failed' ? 'Discard' : 'Withdraw'
}
