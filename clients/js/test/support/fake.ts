/** A server with scripted responses that records its requests. */

import { createServer } from 'node:http';
import type { IncomingMessage, Server } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: IncomingMessage['headers'];
  readonly body: any;
}

/** A status and a body, a broken connection, or no response at all. */
export type Reply =
  | { status: number; body?: unknown; headers?: Record<string, string> }
  | 'close'
  | 'silence';

export type Script = (asked: Asked, number: number) => Reply | Promise<Reply>;

export class Fake implements AsyncDisposable {
  readonly asked: Asked[] = [];
  readonly url: string;
  readonly #server: Server;

  /** `hungUp` is called for every connection that ends. */
  static async start(script: Script, hungUp?: () => void): Promise<Fake> {
    const server = createServer();
    server.on('connection', (socket) => socket.once('close', () => hungUp?.()));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return new Fake(server, script);
  }

  private constructor(server: Server, script: Script) {
    this.#server = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    server.on('request', async (request, response) => {
      const chunks: Buffer[] = [];
      for await (const chunk of request) {
        chunks.push(chunk as Buffer);
      }
      const text = Buffer.concat(chunks).toString();
      const url = new URL(request.url!, this.url);
      const asked = {
        method: request.method!,
        path: decodeURIComponent(url.pathname),
        query: url.searchParams,
        headers: request.headers,
        body: text && JSON.parse(text),
      };
      this.asked.push(asked);
      const reply = await script(asked, this.asked.length);
      if (reply === 'close') {
        request.socket.destroy();
      } else if (reply !== 'silence') {
        response.writeHead(reply.status, { 'Content-Type': 'application/json', ...reply.headers });
        response.end(reply.body === undefined ? undefined : JSON.stringify(reply.body));
      }
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** A broker's response to a push. */
export function pushed(asked: Asked): Reply {
  const results = asked.body.items.map((item: any, index: number) => ({
    index,
    message_id: `message-${index}`,
    transaction_id: item.transactionId,
    queueName: item.queue,
    status: 'queued',
    partition_id: 'partition',
    trace_id: null,
  }));
  return { status: 201, body: results };
}

/** A broker's response to a pop: payloads by partition. */
export function popped(partitions: Record<string, unknown[]>, leaseSeconds = 60): Reply {
  const messages = Object.entries(partitions).flatMap(([partition, payloads]) =>
    payloads.map((data, index) => ({
      id: `${partition}-${index}`,
      transactionId: `${partition}-${index}`,
      traceId: null,
      data,
      producerSub: null,
      createdAt: '2026-01-01T00:00:00Z',
      partitionId: partition,
      partition,
      queue: 'q',
      leaseId: 'lease',
      consumerGroup: 'g',
      retryCount: 0,
    })),
  );
  return { status: 200, body: { success: true, leaseId: 'lease', leaseSeconds, messages } };
}

/** A broker's response to an accepted acknowledgement. */
export function acked(asked: Asked): Reply {
  const acks = asked.body.acknowledgments ?? [asked.body];
  const results = acks.map((ack: any, index: number) => ({
    index,
    transactionId: ack.transactionId,
    success: true,
    error: null,
    leaseReleased: true,
    dlq: false,
    noop: false,
  }));
  return { status: 200, body: results };
}
