// Answers of the daemon, from /v1.

export async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ? body.error.message : answer.statusText);
  return body;
}

// Parts of a view that are missing for another version of the daemon, or for a process that has ended.
export async function getIfThere(path) {
  try {
    return await get(path);
  } catch {
    return null;
  }
}
