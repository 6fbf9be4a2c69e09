/* Pictures made as small as the model sees them before they are sent. */

import { h } from './dom.js';

const WORTH = 200_000; // bytes of a picture that is sent as it is
const QUALITY = 0.92;

/** A photograph of at most so many pixels, without what else its file tells; other files as they are. */
export async function shrink(file, most) {
  const { name, size, type } = file;
  if (size < WORTH || !['image/jpeg', 'image/png'].includes(type)) return file;
  const picture = await createImageBitmap(file).catch(() => null);
  const scale = picture ? Math.sqrt(most / (picture.width * picture.height)) : 1;
  if (scale >= 1) return file;
  const [width, height] = [picture.width, picture.height].map((n) => Math.round(n * scale));
  const canvas = h('canvas', { width, height });
  const g = canvas.getContext('2d');
  g.imageSmoothingQuality = 'high';
  g.drawImage(picture, 0, 0, width, height);
  picture.close();
  const blob = await new Promise((made) => canvas.toBlob(made, type, QUALITY));
  return blob && blob.size < size ? new File([blob], name, { type }) : file;
}
