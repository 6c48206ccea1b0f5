// Roles and grants as the broker evaluates them (docs/security.md). Pure, for tests.

export interface Whoami {
  authentication: boolean
  name: string | null
  kind: 'none' | 'token' | 'key'
  role: 'read-only' | 'read-write' | 'admin'
  /** `null`: all queues. */
  grants: null | { queues: string[]; rights: ('push' | 'pop' | 'read' | 'admin')[] }[]
}

export type Right = 'read' | 'push' | 'pop' | 'change' | 'admin'

const RANK = { 'read-only': 0, 'read-write': 1, admin: 2 }
const NEEDED: Record<Right, keyof typeof RANK> = {
  read: 'read-only',
  push: 'read-write',
  pop: 'read-write',
  change: 'read-write',
  admin: 'admin',
}

export function allowed(who: Whoami, right: Right, queue?: string): boolean {
  if (RANK[who.role] < RANK[NEEDED[right]]) return false
  if (who.grants === null) return true
  if (queue === undefined) return false
  const granted = right === 'change' ? 'admin' : right
  return who.grants.some(
    (grant) =>
      (granted === 'read' ? grant.rights.length > 0 : grant.rights.includes(granted)) &&
      grant.queues.some((pattern) => matches(pattern, queue)),
  )
}

/** `*` matches any run of characters, including none; nothing else is special. */
export function matches(pattern: string, name: string): boolean {
  const parts = pattern.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'))
  return new RegExp(`^${parts.join('.*')}$`, 's').test(name)
}
