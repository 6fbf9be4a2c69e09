// The body of a function that Gradio calls with `element`, `server`, `trigger`, `watch` and `props`; `app.py` fills in
// the names. Addresses begin at the site's root, so that the page also works below a path. Gradio would rewrite the
// selectors of styles that were passed to it.
const root = (window.gradio_config?.root ?? '').replace(/\/?$/, '/');
const { files, scripts, styles } = NAMED;
const address = (path) => new URL(root + 'gradio_api/file=' + path, document.baseURI).href;
// Gradio's loader (6.31) asks for sixty frames a second even after it has left the page, a tenth of a core. An error at
// its next reading of the clock ends that, unprinted.
const unheard = (event) => event.preventDefault();
const heed = () => {
  delete performance.now;
  removeEventListener('error', unheard);
};
const now = performance.now.bind(performance);
addEventListener('error', unheard);
performance.now = () => {
  const [, , caller] = new Error().stack.split('\n');
  if (!caller?.includes('statustracker')) return now();
  setTimeout(heed);
  throw new Error('the loader has left the page');
};
setTimeout(heed, 300);
// Gradio prints an error when the page is left. If the server is gone, the page says so itself.
const cut = (part) => part?.name === 'AbortError' || part?.startsWith?.('Connection errored out');
const { error } = console;
console.error = (...said) => said.some(cut) || error.apply(console, said);
// Gradio's own upload does not tell how far it is.
const send = (visit, file, progress = () => {}) =>
  new Promise((done, failed) => {
    const sent = new XMLHttpRequest();
    const body = new FormData();
    body.append('files', file, file.name);
    sent.upload.onprogress = ({ loaded, total }) => progress(loaded / total);
    sent.onerror = failed;
    sent.onload = () => {
      if (sent.status !== 200) return failed(new Error(sent.responseText));
      const [path] = JSON.parse(sent.responseText);
      return done({ path, url: address(path) });
    };
    sent.open('POST', new URL(root + 'gradio_api/upload?visit=' + visit, document.baseURI));
    sent.send(body);
  });
const link = (rel, href) =>
  new Promise((done) => {
    const node = document.createElement('link');
    Object.assign(node, { rel, href, onload: done, onerror: done });
    document.head.append(node);
  });
scripts.forEach((path) => link('modulepreload', address(path)));
Promise.all(styles.map((path) => link('stylesheet', address(path))))
  .then(() => import(address(files.main)))
  .then((page) =>
    page.mount(element, {
      server,
      upload: send,
      trigger,
      url: (name) => address(files[name]),
      watch: (fn) => watch('value', () => fn(props.value)),
    }),
  )
  .catch((fault) => {
    const below = location.pathname.replace(/\/$/, '');
    const rooted = new URL(root, document.baseURI).pathname === below + '/';
    const elsewhere = `it is served below ${below}; start it with GRADIO_ROOT_PATH=${below}.`;
    element.textContent = `The page could not start: ${rooted ? fault.message : elsewhere}`;
    throw fault;
  });
// The event that Python listens to: 'run'
