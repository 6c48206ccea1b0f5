// Labels and colors of message states.

export type Tone = 'good' | 'warn' | 'bad' | 'accent' | 'plain'

export const MESSAGE_STATUSES = ['pending', 'processing', 'completed', 'dead_letter'] as const

export function statusLabel(status: string): string {
  return status === 'dead_letter' ? 'dead letter' : status
}

export function statusTone(status: string): Tone {
  switch (status) {
    case 'completed':
      return 'good'
    case 'processing':
    case 'running':
      return 'accent'
    case 'dead_letter':
    case 'failed':
    case 'dropped':
      return 'bad'
    case 'retry':
    case 'duplicate':
    case 'buffered':
      return 'warn'
    default:
      return 'plain'
  }
}
