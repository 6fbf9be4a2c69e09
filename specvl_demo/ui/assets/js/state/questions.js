/* The questions of a bench, with their files. */

/** What is asked, as the server reads it; nothing for the pair's own questions. @param {Bench} bench */
export async function questionsOf({ files, pair, parts, question: typed, request, source }) {
  const words = pair.describe.image;
  if (source === 'shipped') return {};
  if (source === 'files') return sendFiles(files, typed || words, parts.api.upload);
  const { media, question } = request;
  const lines = JSON.stringify({ question: question || words, media: media.map((m) => m.path) });
  const named = media.map((m) => [m.path, { ...m, name: m.path }]);
  return { lines, files: Object.values(Object.fromEntries(named)) };
}

/** Returns what asks about the files.
 *  @param {File[]} files @param {string} question @param {Api['upload']} upload */
async function sendFiles(files, question, upload) {
  const questions = questionFile(files);
  /** @type {{ path: string, name: string }[]} */
  const sent = [];
  for (const file of files.filter((other) => other !== questions)) {
    const { path } = await upload(file);
    const taken = !questions && sent.some(({ name }) => name === file.name);
    sent.push({ path, name: taken ? `${sent.length + 1} ${file.name}` : file.name });
  }
  const rows = sent.map(({ name }) => JSON.stringify({ id: name, question, media: [name] }));
  const lines = (await questions?.text()) ?? rows.join('\n');
  return { lines, name: questions?.name ?? 'questions.jsonl', files: sent };
}

/** @param {File[]} files */
export const questionFile = (files) => files.find((file) => /\.jsonl$/i.test(file.name));
