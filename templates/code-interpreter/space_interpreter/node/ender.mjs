// A thread beside the code: it is told by the server when what runs has to end, and can have V8 end it while it runs.
import net from 'node:net';
import { Session } from 'node:inspector';
import { parentPort, workerData } from 'node:worker_threads';

const session = new Session();
session.connectToMainThread();
new net.Socket({ fd: workerData, readable: true, writable: false }).on('data', () => {
    session.post('Runtime.terminateExecution', () => {});
    parentPort.postMessage('interrupted');
});
