import { expect, it } from 'vitest'
import { pushBody, where } from './calls'

const draft = {
  queue: 'orders',
  partition: '',
  payload: '{"id": 12345678901234567890}',
  transactionId: ' order-1 ',
  traceId: '',
  traceparent: '',
  namespace: '',
  task: '',
}

it('a push sends the values as they were typed, without layout and without what was left empty', () => {
  expect(pushBody(draft)).toBe(
    '{"items":[{"queue":"orders","transactionId":"order-1","payload":{"id":12345678901234567890}}]}',
  )
})

it('ids may hold anything', () => {
  expect(where('p', 'a/b?c#d e')).toBe('/api/v1/messages/p/a%2Fb%3Fc%23d%20e')
})
