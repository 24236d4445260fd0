// Code of JavaScript and TypeScript in this process's own global scope, one piece after the other, told by lines of JSON on the descriptor
// of the first argument. V8's own console mode (replMode of its inspector) gives what an interactive session needs: `await` at the top, and
// `let`, `const` and `class` again. Static imports become dynamic ones. The thread of `ender.mjs` ends what runs and does not end.
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import util from 'node:util';
import { Session } from 'node:inspector';
import { createRequire, stripTypeScriptTypes } from 'node:module';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { parse } from './acorn.mjs';

// OpenSSL's generators are in this process's memory, which every clone of a snapshot has, and Node has no word for giving them entropy.
const reseed = createRequire(import.meta.url)('./koffi.node').load(null).func('void RAND_seed(const void *, int)');

const [tasks, ends] = process.argv.slice(2, 4).map(Number);
process.argv.length = 1;

const session = new Session();
session.connect();
const post = (method, given) => new Promise((done, failed) => session.post(method, given, (fault, found) => (fault ? failed(fault) : done(found))));
const socket = new net.Socket({ fd: tasks, readable: true, writable: true });
const tell = said => socket.write(JSON.stringify(said) + '\n');
let interrupted = () => {};
const ender = new Worker(new URL('ender.mjs', import.meta.url), { workerData: ends, stdout: true, stderr: true });
ender.on('message', () => interrupted());

// -- what code finds ----------------------------------------------------------------------------------------------------
const local = () => createRequire(path.join(process.cwd(), 'code.js'));
function resolved(name) {
    if (/^(node:|data:|file:|https?:)/.test(name)) return name;
    try {
        const found = local().resolve(name);
        return path.isAbsolute(found) ? pathToFileURL(found).href : found;
    } catch (fault) {
        if (fault.code === 'ERR_PACKAGE_PATH_NOT_EXPORTED') return packaged(name);
        throw fault;
    }
}
// A package that only `import` may have: its entry is found as the resolver of modules would from the directory of the code.
function packaged(name) {
    const [scope, ...rest] = name.split('/');
    const title = scope.startsWith('@') ? `${scope}/${rest.shift()}` : scope;
    for (let place = process.cwd(); ; place = path.dirname(place)) {
        const at = path.join(place, 'node_modules', title, 'package.json');
        if (fs.existsSync(at)) {
            const exported = JSON.parse(fs.readFileSync(at, 'utf8')).exports;
            const key = rest.length ? `./${rest.join('/')}` : '.';
            let found = exported?.[key] ?? (key === '.' ? exported : undefined);
            while (found && typeof found === 'object') found = found.import ?? found.node ?? found.default;
            if (typeof found === 'string') return pathToFileURL(path.join(path.dirname(at), found)).href;
        }
        if (place === path.dirname(place)) throw new Error(`Cannot find module '${name}'`);
    }
}
const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
hidden('require', Object.assign(name => local()(name), { resolve: name => local().resolve(name), cache: createRequire(import.meta.url).cache }));
hidden('module', { exports: {} });
hidden('exports', globalThis.module.exports);
Object.defineProperty(globalThis, '__dirname', { get: () => process.cwd(), configurable: true });
hidden('__space_import', (name, options) => import(resolved(String(name)), options));

const show = bundle => tell({ type: 'display', bundle });
const shown = (kind, value) => show({ 'text/plain': String(value), [kind]: value });
const base64 = data => (typeof data === 'string' ? data : Buffer.from(data).toString('base64'));
hidden('$$', {
    display: value => show(bundleOf(value)),
    mime: bundle => show({ ...bundle }),
    text: value => show({ 'text/plain': String(value) }),
    html: value => shown('text/html', value),
    markdown: value => shown('text/markdown', value),
    svg: value => shown('image/svg+xml', value),
    latex: value => shown('text/latex', value),
    json: value => show({ 'application/json': value }),
    png: data => show({ 'image/png': base64(data) }),
    jpeg: data => show({ 'image/jpeg': base64(data) }),
});
hidden('display', globalThis.$$.display);

// The state of V8's own generator is a snapshot's, which every clone of it has: numbers are taken from the kernel's generator.
const pool = new Uint32Array(1024);
let left = 0;
const urandom = fs.openSync('/dev/urandom');
Math.random = function random() {
    if (left < 2) {
        fs.readSync(urandom, pool);
        left = pool.length;
    }
    return ((pool[--left] >>> 5) * 67108864 + (pool[--left] >>> 6)) / 9007199254740992;
};

function drawAnew() {
    left = 0;
    const entropy = Buffer.alloc(48);
    fs.readSync(urandom, entropy);
    reseed(entropy, entropy.length);
}

function environment(variables) {
    const before = Object.fromEntries(Object.keys(variables).map(name => [name, process.env[name]]));
    Object.assign(process.env, variables);
    return () => {
        for (const [name, value] of Object.entries(before)) {
            if (value === undefined) delete process.env[name];
            else process.env[name] = value;
        }
    };
}

// -- from source to what V8 runs ----------------------------------------------------------------------------------------
// Imports are the language's own statements, which only modules may have.
function transformed(code, typescript) {
    const source = typescript ? stripTypeScriptTypes(code, { mode: 'transform' }) : code;
    if (!/\b(import|export)\b/.test(source)) return source;
    let tree;
    try {
        tree = parse(source, { ecmaVersion: 'latest', sourceType: 'module', allowAwaitOutsideFunction: true, allowReturnOutsideFunction: true });
    } catch {
        return source; // V8 says what is wrong with it
    }
    const edits = [];
    for (const node of tree.body) {
        if (node.type === 'ImportDeclaration') edits.push([node.start, node.end, imported(node)]);
        else if (node.type === 'ExportNamedDeclaration' && node.declaration) edits.push([node.start, node.declaration.start, '']);
        else if (node.type === 'ExportNamedDeclaration' && !node.source) edits.push([node.start, node.end, '']);
        else if (node.type === 'ExportDefaultDeclaration') edits.push([node.start, node.declaration.start, '']);
    }
    walk(tree, node => node.type === 'ImportExpression' && edits.push([node.start, node.start + 6, '__space_import']));
    edits.sort((a, b) => b[0] - a[0]);
    return edits.reduce((text, [from, to, other]) => text.slice(0, from) + other + text.slice(to), source);
}

function imported({ source, specifiers }) {
    const found = `await __space_import(${source.raw})`;
    const all = specifiers.find(each => each.type === 'ImportNamespaceSpecifier');
    const names = specifiers
        .filter(each => each !== all)
        .map(each => `${each.type === 'ImportDefaultSpecifier' ? 'default' : (each.imported.raw ?? each.imported.name)}: ${each.local.name}`);
    const parts = [...(all ? [`const ${all.local.name} = ${found};`] : []), ...(names.length ? [`const {${names.join(', ')}} = ${found};`] : [])];
    return parts.length ? parts.join(' ') : `${found};`;
}

function walk(node, visit) {
    if (!node || typeof node !== 'object') return;
    if (typeof node.type === 'string') visit(node);
    for (const each of Object.values(node)) Array.isArray(each) ? each.forEach(one => walk(one, visit)) : walk(each, visit);
}

// -- from values to what is told ----------------------------------------------------------------------------------------
function bundleOf(value) {
    if (value === undefined) return null;
    const bundle = { 'text/plain': util.inspect(value) };
    if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return bundle;
    for (const [name, kind] of [['_toHtml', 'text/html'], ['_toSvg', 'image/svg+xml'], ['_toPng', 'image/png'], ['_toJpeg', 'image/jpeg'], ['_toMarkdown', 'text/markdown']]) {
        if (typeof value[name] === 'function') bundle[kind] = value[name]();
    }
    if (typeof value._toMime === 'function') Object.assign(bundle, value._toMime());
    return bundle;
}

function errorOf(thrown) {
    if (!(thrown instanceof Error) && !util.types.isNativeError(thrown)) {
        const text = util.inspect(thrown);
        return { name: 'Error', value: text, traceback: `Uncaught ${text}` };
    }
    const stack = String(thrown.stack ?? thrown).split('\n');
    const ours = stack.findIndex(line => /node:inspector|kernel\.mjs/.test(line));
    return { name: thrown.name, value: String(thrown.message), traceback: (ours < 0 ? stack : stack.slice(0, ours)).join('\n') };
}

const INTERRUPTED = { name: 'KeyboardInterrupt', value: 'the execution was interrupted', traceback: 'KeyboardInterrupt: the execution was interrupted' };
let kept; // the value that is told of
hidden('__space_keep', value => void (kept = value));

async function run(code, typescript) {
    const broken = new Promise(done => (interrupted = () => done(INTERRUPTED)));
    const running = evaluated(code, typescript);
    const found = await Promise.race([running.then(bundle => ({ bundle })), broken.then(error => ({ error }))]).catch(error => ({ error }));
    interrupted = () => {};
    return found;
}

async function evaluated(code, typescript) {
    let expression;
    try {
        expression = transformed(code, typescript);
    } catch (fault) {
        throw errorOf(fault);
    }
    let found;
    try {
        found = await post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, objectGroup: 'code' });
    } catch {
        throw INTERRUPTED; // V8 was told to end it
    }
    const { result, exceptionDetails } = found;
    const told = exceptionDetails ? exceptionDetails.exception : result;
    kept = told && 'value' in told ? told.value : undefined;
    if (told?.unserializableValue) kept = told.unserializableValue.endsWith('n') ? BigInt(told.unserializableValue.slice(0, -1)) : Number(told.unserializableValue);
    if (told?.objectId) {
        await post('Runtime.callFunctionOn', { functionDeclaration: 'function (value) { __space_keep(value); }', objectId: told.objectId, arguments: [{ objectId: told.objectId }] });
        await post('Runtime.releaseObjectGroup', { objectGroup: 'code' });
    }
    const value = kept;
    kept = undefined;
    if (exceptionDetails) throw errorOf(value);
    try {
        return bundleOf(value);
    } catch (fault) {
        throw errorOf(fault);
    }
}

// -- lines --------------------------------------------------------------------------------------------------------------
let turn = Promise.resolve();
let text = '';
socket.setEncoding('utf8');
socket.on('data', data => {
    text += data;
    for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n')) {
        const asked = JSON.parse(text.slice(0, at));
        text = text.slice(at + 1);
        turn = turn.then(() => take(asked));
    }
});
socket.on('close', () => process.exit(0));

async function take(asked) {
    if (asked.restored) {
        drawAnew();
        return;
    }
    Object.assign(process.env, asked.adopted);
    const restore = environment(asked.variables);
    const found = await run(asked.code, asked.language === 'typescript');
    restore();
    tell({ type: 'done', id: asked.id, ...found });
}

const said = fault => fs.writeSync(2, `Uncaught ${util.inspect(fault)}\n`);
process.on('uncaughtException', said);
process.on('unhandledRejection', said);
process.on('SIGINT', () => interrupted());
ender.once('online', () => tell({ type: 'ready' }));
