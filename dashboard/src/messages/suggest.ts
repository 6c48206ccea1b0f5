// Suggestions for name fields. Without a response from the broker there are none, and the field still works.

import { get, type Schema } from '../api/client'
import { groupLabel } from '../groups/names'

const OFFERED = 20
const GROUPS_MAX = 1_000

export type Suggest = (part: string) => Promise<string[]>

export const queues: Suggest = async (part) => {
  const page = await get<Schema<'Queues'>>('/api/v1/resources/queues', { search: part, limit: OFFERED })
  return page.queues.map(({ name }) => name)
}

export function partitionsOf(queue: string): Suggest {
  return async (part) => {
    if (queue === '') return []
    const page = await get<Schema<'BusyPartitions'>>('/api/v1/resources/partitions', {
      queue,
      search: part,
      limit: OFFERED,
    })
    return page.partitions.map(({ partition }) => partition)
  }
}

export function groupsOf(queue: string): Suggest {
  return async (part) => {
    const groups = await get<Schema<'ConsumerGroup'>[]>('/api/v1/consumer-groups', { queue, limit: GROUPS_MAX })
    const names = new Set(groups.map(({ name }) => name))
    return [...names].filter((name) => groupLabel(name).toLowerCase().includes(part.toLowerCase())).slice(0, OFFERED)
  }
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/** The id of a partition by its name; an id is returned unchanged. */
export async function partitionId(queue: string, partition: string): Promise<string | undefined> {
  if (UUID.test(partition)) return partition
  const page = await get<Schema<'BusyPartitions'>>('/api/v1/resources/partitions', {
    queue,
    search: partition,
    limit: 1_000,
  })
  return page.partitions.find((one) => one.partition === partition)?.id
}
